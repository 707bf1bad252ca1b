"""Encodes text faster, and equally: words that were met before are looked up instead of merged again.

Only where that is sure to give what the library gives: a byte-level BPE that splits text in a way that splits.py
knows, and text without added tokens, rare whitespace or much that is not ASCII. The rest goes through the library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dilocoxd.trainer.tokens.splits import splitter_of

_WORDS_MAX: Final = 1 << 18
"""Then the memory of words starts anew."""
_WORDS_BYTES_MAX: Final = 16 << 20
"""The same for their bytes."""
_BLOCK_BYTES: Final = 1 << 18
"""Texts are encoded together until they are so long: short ones share the cost of the calls."""
_SLOTS_BITS: Final = 18
_KEY_BYTES: Final = 16
"""Words up to this length are their own keys, so that equal keys are equal words."""
_SEPARATOR: Final = b"\0"
_FOREIGN_SHARE: Final = 8
"""With more than one in so many bytes behind the first ones of their characters, words hardly ever come back."""
_RARE_SPACES: Final = re.compile("[\x85\xa0\u1680\u180e\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
"""Whitespace for the patterns, which would not end a stretch in splits.py."""
_MASKS: Final = np.array([(1 << (8 * length)) - 1 for length in range(9)], dtype=np.uint64)
_FACTORS: Final = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64)

_LEVELS: Final = {byte: 256 + byte for byte in range(33)} | {127: 289}
"""What bytes of ASCII are called in a byte-level vocabulary (openai/gpt-2, encoder.py), if not by themselves."""

_Words = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.int64]


class WordEncoder:
    """Ids of texts by one tokenizer, as little-endian bytes of one type."""

    def __init__(self, tokenizer: Any, dtype: str) -> None:
        self._tokenizer = tokenizer
        self._dtype = np.dtype(dtype).newbyteorder("<")
        tables = json.loads(tokenizer.to_str())
        self._split = splitter_of(tables) if _is_word_by_word(tables) else None
        added = [token["content"] for token in tables.get("added_tokens") or []]
        self._added = re.compile("|".join(map(re.escape, added))) if added else None
        self._ids: npt.NDArray[Any]
        self._firsts: _Places
        self._counts: _Places
        self._forget()

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        """Ids of each text, without special tokens, as the library gives them."""
        if self._split is None:
            return self._by_library(texts)
        found: list[bytes | None] = [None] * len(texts)
        for numbers, block in self._blocks(texts):
            for number, ids in zip(numbers, self._by_words(block), strict=True):
                found[number] = ids
        others = iter(self._by_library([text for text, ids in zip(texts, found, strict=True) if ids is None]))
        return [ids if ids is not None else next(others) for ids in found]

    def _blocks(self, texts: Sequence[str]) -> Iterator[tuple[list[int], list[bytes]]]:
        """(their numbers, plain texts) to be encoded together."""
        numbers: list[int] = []
        block: list[bytes] = []
        size = 0
        for number, text in enumerate(texts):
            data = self._plain(text)
            if data is None:
                continue
            numbers.append(number)
            block.append(data)
            size += len(data)
            if size >= _BLOCK_BYTES:
                yield numbers, block
                numbers, block, size = [], [], 0
        if block:
            yield numbers, block

    def _plain(self, text: str) -> bytes | None:
        """The text in UTF-8, if its words can be told."""
        if self._added is not None and self._added.search(text) is not None:
            return None
        data = text.encode()
        if _SEPARATOR in data or (len(data) - len(text)) * _FOREIGN_SHARE > len(data):
            return None
        return data if len(data) == len(text) or _RARE_SPACES.search(text) is None else None

    def _by_words(self, texts: Sequence[bytes]) -> list[bytes]:
        assert self._split is not None
        if len(self._numbers) > _WORDS_MAX or self._num_bytes > _WORDS_BYTES_MAX:
            self._forget()
        data = b"".join((_SEPARATOR, _SEPARATOR.join(texts), _SEPARATOR))
        starts = np.flatnonzero(self._split(data))
        lengths = np.diff(starts, append=len(data))
        words = self._look_up(data, starts, lengths)
        counts = self._counts[words]
        ends = np.cumsum(counts)
        ids = self._ids[np.repeat(self._firsts[words] - (ends - counts), counts) + np.arange(ends[-1])]
        borders = ends[words == 0].tolist()
        return [ids[start:end].tobytes() for start, end in pairwise(borders)]

    def _look_up(self, data: bytes, starts: _Places, lengths: _Places) -> _Places:
        """Numbers of the words; words that were never met get one."""
        low, high = _keys(data, starts, lengths)
        slots = _slots(low, high)
        words = self._slot_words[slots]
        is_there = (self._slot_low[slots] == low) & (self._slot_high[slots] == high) & (lengths <= _KEY_BYTES)
        missing = np.flatnonzero(~is_there)
        new: dict[bytes, int] = {}
        for index, start, length in zip(
            missing.tolist(), starts[missing].tolist(), lengths[missing].tolist(), strict=True
        ):
            word = data[start : start + length]
            number = self._numbers.get(word)
            if number is None:
                number = self._numbers[word] = len(self._numbers)
                new[word] = index
            words[index] = number
        if new:
            self._learn(list(new))
            short = np.array([index for word, index in new.items() if len(word) <= _KEY_BYTES], np.int64)
            # A slot stays with the word that came first, which is likely the more frequent; others stay in the table.
            short = short[np.unique(slots[short], return_index=True)[1]]
            short = short[self._slot_words[slots[short]] == 0]
            self._slot_low[slots[short]], self._slot_high[slots[short]] = low[short], high[short]
            self._slot_words[slots[short]] = words[short]
        return words

    def _learn(self, words: Sequence[bytes]) -> None:
        encoded = iter(self._by_library([word.decode() for word in words if not word.isascii()]))
        # The model alone: what else the library does to a text leaves one word of ASCII as it is, and takes its time.
        merged = self._tokenizer.model.tokenize
        ids = [
            [token.id for token in merged(word.decode().translate(_LEVELS))]
            if word.isascii()
            else np.frombuffer(next(encoded), self._dtype).tolist()
            for word in words
        ]
        self._num_bytes += sum(map(len, words))
        counts = np.array([*map(len, ids)], np.int64)
        firsts = len(self._ids) + np.cumsum(counts) - counts
        self._ids = np.concatenate([self._ids, np.fromiter(chain.from_iterable(ids), self._dtype, int(counts.sum()))])
        self._firsts, self._counts = np.append(self._firsts, firsts), np.append(self._counts, counts)

    def _forget(self) -> None:
        """Know no word but the separator, which has number 0, no ids and, as all free slots have, zeros as its key."""
        self._numbers = {_SEPARATOR: 0}
        self._num_bytes = 0
        self._ids = np.zeros(0, self._dtype)
        self._firsts = np.zeros(1, np.int64)
        self._counts = np.zeros(1, np.int64)
        self._slot_low, self._slot_high = np.zeros((2, 1 << _SLOTS_BITS), np.uint64)
        self._slot_words = np.zeros(1 << _SLOTS_BITS, np.int64)

    def _by_library(self, texts: Sequence[str]) -> list[bytes]:
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, dtype=self._dtype).tobytes() for encoding in encoded]


def _keys(data: bytes, starts: _Places, lengths: _Places) -> tuple[_Words, _Words]:
    """The first eight bytes of each word and the next eight as numbers; behind its end are zeros."""
    padded = data + bytes(_KEY_BYTES)
    at_each_byte: _Words = np.ndarray((len(data) + 8,), np.dtype("<u8"), padded, strides=(1,))
    low = at_each_byte[starts] & _MASKS[np.minimum(lengths, 8)]
    high = np.zeros_like(low)
    longer = np.flatnonzero(lengths > 8)
    high[longer] = at_each_byte[starts[longer] + 8] & _MASKS[np.minimum(lengths[longer] - 8, 8)]
    return low, high


def _slots(low: _Words, high: _Words) -> _Places:
    with np.errstate(over="ignore"):
        mixed = low * _FACTORS[0] ^ high * _FACTORS[1]
        mixed ^= mixed >> np.uint64(32)
        slots: _Places = ((mixed * _FACTORS[2]) >> np.uint64(64 - _SLOTS_BITS)).astype(np.int64)
    return slots


def _is_word_by_word(tables: dict[str, Any]) -> bool:
    """A word has the same ids wherever it stands. NFC may be: it never joins characters with ASCII whitespace."""
    model, normalizer = tables.get("model") or {}, tables.get("normalizer") or {"type": "NFC"}
    is_plain_bpe = (
        model.get("type") == "BPE" and not model.get("dropout") and not model.get("continuing_subword_prefix")
    )
    return is_plain_bpe and normalizer.get("type") == "NFC"
