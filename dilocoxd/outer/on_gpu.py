"""This site's own contribution, encoded on a GPU: the bytes are those of the CPU, whose time is left to others.

Only `Codec.encode` of a whole vector moves: what is decoded, summed or computed again for others stays on the CPU. A
format fits if it is made of operations that IEEE 754 rounds one at a time on both, and of sums in an order of its own;
where the library chooses (equal magnitudes of top-k, means of bins) two devices may differ. ADR 49.

Since the bytes are the same, a GPU that has no room, or fails, costs time and nothing else: the CPU does it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final, Literal

import torch
from torch import Tensor

from dilocoxd.compress.codec import Codec, Payload, check_values, chunks
from dilocoxd.errors import ConfigError

FORMATS: Final = ("fp32", "fp16", "bf16", "int8", "int4", "int2")
"""Codecs that give the same bytes on every device; config/site_fit.py has them too, for it loads no torch."""
PIECE: Final = 1 << 22
"""Values on the device at a time: 16 MiB, and some five times that beside them."""


class OnGpu(Codec):
    """`inner` with another way to encode a whole vector. Not for several threads."""

    def __init__(self, inner: Codec, device: torch.device) -> None:
        """Raises ConfigError for a format that may come out otherwise there."""
        if inner.name not in FORMATS:
            raise ConfigError(
                f"codec {inner.name} is not encoded on a GPU, only {', '.join(FORMATS)}; set workers.encode_device to"
                " 'cpu'"
            )
        self.name, self.chunk = inner.name, inner.chunk
        self._inner, self._device = inner, device
        self._is_usable = True
        self._has_complained = False

    def payload_bytes(self, numel: int) -> int:
        return self._inner.payload_bytes(numel)

    def chunks(self, numel: int) -> Iterator[tuple[int, int]]:
        return self._inner.chunks(numel)

    def encode_chunk(self, values: Tensor, start: int, numel: int, out: Tensor) -> None:
        self._inner.encode_chunk(values, start, numel, out)

    def decode_chunk(self, payload: Tensor, start: int, numel: int, out: Tensor) -> None:
        self._inner.decode_chunk(payload, start, numel, out)

    def add_chunk_(self, payload: Tensor, start: int, numel: int, target: Tensor, factor: float) -> None:
        self._inner.add_chunk_(payload, start, numel, target, factor)

    def square_sum_chunk(self, payload: Tensor, start: int, numel: int, count: int) -> float:
        return self._inner.square_sum_chunk(payload, start, numel, count)

    def checked_payload(self, payload: Payload, numel: int) -> Tensor:
        return self._inner.checked_payload(payload, numel)

    def finish_payload(self, out: Tensor, numel: int) -> None:
        self._inner.finish_payload(out, numel)

    def encode(self, values: Tensor, out: bytearray | memoryview | Tensor) -> None:
        target = self.target_payload(out, check_values(values))
        if self._is_usable:
            try:
                target.copy_(self._encoded_there(values))
                return
            except RuntimeError as error:  # torch's, of a device; nothing of `target` counts until it is whole
                self._give_up(error)
        self._inner.encode(values, target)

    def _encoded_there(self, values: Tensor) -> Tensor:
        """uint8[payload_bytes] on the device. Raises NotEncodableError, and RuntimeError of the device."""
        numel = values.numel()
        with self._device:  # what codecs make without saying where
            payload = torch.empty(self.payload_bytes(numel), dtype=torch.uint8)
            for start, stop in chunks(numel, PIECE):
                self._inner.encode_chunk(values[start:stop].to(self._device), start, numel, payload)
            self._inner.finish_payload(payload, numel)
        return payload

    def _give_up(self, error: RuntimeError) -> None:
        """This time if there was no room, else for good."""
        self._is_usable = isinstance(error, torch.OutOfMemoryError)
        if not self._has_complained or not self._is_usable:
            until = "while it has no room" if self._is_usable else "from now on"
            reason = str(error).strip().splitlines()[:1]
            sys.stderr.write(
                f"{self._device} did not encode, the CPU does it {until}: {(reason or [type(error).__name__])[0]}\n"
            )
            sys.stderr.flush()
        self._has_complained = True


def device_of_part(choice: Literal["cpu", "cuda"], index: int) -> torch.device | None:
    """Where the outer worker's part `index` encodes, by `workers.encode_device`: parts take the GPUs in turn; None for
    the CPU. Raises ConfigError where there is no GPU."""
    if choice == "cpu":
        return None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise ConfigError(
            "workers.encode_device = 'cuda', but torch finds no GPU on this machine; set it to 'cpu' in site.toml, or"
            " run dilocoxd doctor for what is missing"
        )
    return torch.device("cuda", index % count)
