"""Where a tokenizer splits text into words, found in whole arrays of bytes: GPT-2's pattern and those of Llama 3 and
Qwen, restated for ASCII.

Texts lie behind each other, NUL before, between and behind them. A stretch with other characters between two
whitespaces stays one word, which the library splits itself: no pattern here looks across its ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]
Splitter = Callable[[bytes], Flags]
"""True at the first byte of each word; every NUL is a word of its own."""

_NUL, _SPACE, _NEWLINE, _LETTER, _DIGIT, _OTHER, _FOREIGN = range(7)
_APOSTROPHE: Final = ord("'")
_BLANK: Final = ord(" ")
QWEN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3: Final = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_DIGITS_OF_PATTERN: Final = {QWEN: 1, LLAMA3: 3}
"""How many digits a word has at most."""


def _class_of(byte: int) -> int:
    char = chr(byte)
    if byte == 0:
        return _NUL
    if byte >= 128:
        return _FOREIGN
    if char in "\r\n":
        return _NEWLINE
    if char in " \t\v\f":
        return _SPACE
    if char.isalpha():
        return _LETTER
    return _DIGIT if char.isdigit() else _OTHER


_CLASSES: Final = bytes(map(_class_of, range(256)))
_CONTRACTIONS: Final = ("s", "t", "m", "d", "re", "ve", "ll")


def splitter_of(tables: dict[str, Any]) -> Splitter | None:
    """How the tokenizer whose tokenizer.json is `tables` splits ASCII; None if that is not known here."""
    pre = tables.get("pre_tokenizer") or {}
    if pre.get("add_prefix_space"):
        return None
    if pre.get("type") == "ByteLevel" and pre.get("use_regex", True):
        return split_like_gpt2
    steps = pre.get("pretokenizers") or [] if pre.get("type") == "Sequence" else []
    if [step.get("type") for step in steps] != ["Split", "ByteLevel"]:
        return None
    split, to_bytes = steps
    pattern = str((split.get("pattern") or {}).get("Regex"))
    is_plain = split.get("behavior") == "Isolated" and not split.get("invert")
    is_plain = is_plain and not to_bytes.get("add_prefix_space") and to_bytes.get("use_regex") is False
    num_digits = _DIGITS_OF_PATTERN.get(pattern)
    return (lambda data: split_like_llama3(data, num_digits)) if is_plain and num_digits else None


def split_like_gpt2(data: bytes) -> Flags:
    """The words of GPT-2 (openai/gpt-2, encoder.py)."""
    text, classes = _arrays(data)
    kinds = np.where(classes == _NEWLINE, np.uint8(_SPACE), classes)
    starts = _changes(kinds)
    behind = np.flatnonzero((kinds[:-1] == _SPACE) & (kinds[1:] > _SPACE)) + 1
    starts[behind - 1] = True
    starts[behind[text[behind - 1] == _BLANK]] = False
    _contract(starts, text, text, classes)
    _keep_foreign_whole(starts, classes, behind - 1)
    return starts


def split_like_llama3(data: bytes, num_digits: int) -> Flags:
    """The words of Llama 3, with so many digits in one at most."""
    text, classes = _arrays(data)
    kinds = np.where(classes == _NEWLINE, np.uint8(_SPACE), classes)
    starts = _changes(kinds)
    spaces = kinds == _SPACE
    begins = np.flatnonzero(spaces[1:] & ~spaces[:-1]) + 1
    ends = np.flatnonzero(spaces[:-1] & ~spaces[1:]) + 1
    _join_spaces(starts, text, classes, (begins, ends))
    singles = np.flatnonzero((classes[1:-1] == _OTHER) & (classes[:-2] != _OTHER) & (classes[2:] == _LETTER)) + 1
    starts[singles[starts[singles]] + 1] = False
    _contract(starts, text, text | np.uint8(32), classes)
    digits = np.flatnonzero(classes == _DIGIT)
    firsts = np.maximum.accumulate(np.where(starts[digits], digits, 0))
    starts[digits[(digits - firsts) % num_digits == 0]] = True
    ends = ends[kinds[ends] > _SPACE]
    _keep_foreign_whole(starts, classes, ends - (classes[ends - 1] != _NEWLINE))
    return starts


def _arrays(data: bytes) -> tuple[Bytes, Bytes]:
    return np.frombuffer(data, np.uint8), np.frombuffer(data.translate(_CLASSES), np.uint8)


def _changes(kinds: Bytes) -> Flags:
    starts = np.empty(len(kinds), np.bool_)
    starts[0] = True
    np.not_equal(kinds[1:], kinds[:-1], out=starts[1:])
    starts |= kinds == _NUL
    return starts


def _join_spaces(starts: Flags, text: Bytes, classes: Bytes, runs: tuple[Places, Places]) -> None:
    """Whitespace up to the last line end is a word; of what follows, the last goes to the next word if that may be."""
    begins, ends = runs[0].copy(), runs[1]
    newlines, others = np.flatnonzero(classes == _NEWLINE), np.flatnonzero(classes != _NEWLINE)
    # Line ends right behind signs belong to these.
    taken = (classes[begins] == _NEWLINE) & (classes[begins - 1] == _OTHER)
    starts[begins[taken]] = False
    begins[taken] = others[np.searchsorted(others, begins[taken])]
    starts[begins] = True
    if len(newlines):
        last = newlines[np.maximum(np.searchsorted(newlines, ends) - 1, 0)]
        begins = np.where((last >= begins) & (last < ends), last + 1, begins)
        starts[begins] = True
    following = classes[ends]
    is_left = (ends > begins) & (following != _NUL)
    starts[ends[is_left] - 1] = True
    joins = (following == _LETTER) | ((following == _OTHER) & (text[ends - 1] == _BLANK))
    starts[ends[is_left & joins]] = False


def _contract(starts: Flags, text: Bytes, lowered: Bytes, classes: Bytes) -> None:
    """'s and the like, where a word may begin with an apostrophe."""
    places = np.flatnonzero(text == _APOSTROPHE)
    places = places[(classes[places - 1] != _OTHER) & (text[places - 1] != _BLANK)]
    places = places[classes[places + 1] == _LETTER]
    if not len(places):
        return
    first = lowered[places + 1]
    second = lowered[places + 2]
    for letters in _CONTRACTIONS:
        found = first == ord(letters[0])
        if len(letters) == 2:
            found &= (second == ord(letters[1])) & (classes[places + 2] == _LETTER)
        starts[places[found] + 1] = False
        starts[places[found] + 1 + len(letters)] = True


def _keep_foreign_whole(starts: Flags, classes: Bytes, borders: Places) -> None:
    """No splits in a stretch with other characters. `borders`: where a word begins whatever the words before and behind
    are, one at each whitespace."""
    foreign = np.flatnonzero(classes == _FOREIGN)
    if not len(foreign):
        return
    nuls = np.flatnonzero(classes == _NUL)
    borders = np.sort(np.concatenate([borders, nuls, nuls + 1]), kind="stable")
    for number in np.unique(np.searchsorted(borders, foreign, side="right")):
        begin, end = borders[number - 1], borders[number]
        starts[begin + 1 : end] = False
        starts[begin] = starts[end] = True
