"""Which text a site reads at which position: a pure function of (seed, peer, position), so that nothing is remembered.

A position counts sequences. A restart continues from a saved number; sites that join or leave move nobody else.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dilocoxd.errors import ConfigError
from dilocoxd.trainer.data.prepare import PreparedData, Tokens

_COUNTER = struct.Struct("<Q")


class SampleOrder(Protocol):
    """What a training loop reads from."""

    own_position: int
    """Sequences read in an order of the site's own beside leased ones; 0 where there are not both. Kept with the inner
    checkpoint and put back from it."""
    document_end: int | None
    """The token behind which another document begins; None: the model sees all of a sample."""

    def begin(self, samples: Sequence[int], volume: int = 0) -> None:
        """A phase begins that has leased these samples of a volume: start, stop, start, stop, ..."""

    def batch(self, position: int, num_sequences: int) -> tuple[Tensor, Tensor]:
        """(ids, targets), both [num_sequences, seq_len] int64; `position` counts sequences of the site's life."""

    def validation_batches(self, num_sequences: int, batch_sequences: int) -> list[tuple[Tensor, Tensor]]:
        """The same for every site and every call."""

    def validation_by_source(self, num_sequences: int, batch_sequences: int) -> dict[str, list[tuple[Tensor, Tensor]]]:
        """The same batches by the source of their text; one without a name where the run has one text."""


class BatchOrder:
    """Windows of ``seq_len`` + 1 tokens: at hashed offsets of the training text, at fixed ones of the held-out text."""

    document_end: int | None = None
    own_position = 0

    def __init__(self, prepared: PreparedData, seq_len: int, *, seed: int, peer: str) -> None:
        """``seed`` from the manifest, ``peer`` names the site. ConfigError for a corpus shorter than a window."""
        self.text_sha256 = prepared.data_sha256
        """Of all tokens, hex."""
        self._train = prepared.train_tokens()
        self._held = prepared.validation_tokens()
        self._seq_len = seq_len
        for what, tokens in (("training", self._train), ("held-out", self._held)):
            if len(tokens) < seq_len + 1:
                raise ConfigError(
                    f"the corpus has {len(tokens)} {what} tokens, fewer than one window of {seq_len + 1}: "
                    "use a larger corpus or a smaller model.seq_len"
                )
        self._key = hashlib.blake2b(f"{seed}/{peer}".encode(), digest_size=32).digest()

    def begin(self, samples: Sequence[int], volume: int = 0) -> None:
        """A phase begins; nothing is leased here."""

    def offsets(self, position: int, num_sequences: int) -> npt.NDArray[np.int64]:
        """First token of each of the sequences ``position``, ``position`` + 1, ..."""
        bound = len(self._train) - self._seq_len
        hashes = (
            hashlib.blake2b(_COUNTER.pack(position + index), key=self._key, digest_size=8).digest()
            for index in range(num_sequences)
        )
        return np.array([int.from_bytes(digest, "little") % bound for digest in hashes], dtype=np.int64)

    def batch(self, position: int, num_sequences: int) -> tuple[Tensor, Tensor]:
        """(ids, targets), both [num_sequences, seq_len] int64; targets are ids one token later."""
        return _windows(self._train, self.offsets(position, num_sequences), self._seq_len)

    def validation_by_source(self, num_sequences: int, batch_sequences: int) -> dict[str, list[tuple[Tensor, Tensor]]]:
        """All of them, under no name."""
        return {"": self.validation_batches(num_sequences, batch_sequences)}

    def validation_batches(self, num_sequences: int, batch_sequences: int) -> list[tuple[Tensor, Tensor]]:
        """The same evenly spread windows for every site and every call; full batches only, at least one."""
        last = len(self._held) - self._seq_len - 1
        fitting = max(1, min(num_sequences, len(self._held) // (self._seq_len + 1)))
        offsets = np.linspace(0, last, fitting).astype(np.int64)
        size = min(batch_sequences, fitting)
        return [
            _windows(self._held, offsets[start : start + size], self._seq_len)
            for start in range(0, fitting - size + 1, size)
        ]


def _windows(tokens: Tokens, offsets: npt.NDArray[np.int64], seq_len: int) -> tuple[Tensor, Tensor]:
    rows = np.stack([tokens[offset : offset + seq_len + 1] for offset in offsets]).astype(np.int64)
    windows = torch.from_numpy(rows)
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
