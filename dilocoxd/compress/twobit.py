"""Block codec with four unequal levels: two bits a value.

value = scale of the block * level of the code. Byte layout of n values, blocks of B: ceil(n / B) scales of 2 bytes
(bf16), then codes of two bits, levels -3, -1, 1, 3 for codes 0..3; groups of 4096 values (the last one shorter, t
values) take q = ceil(t / 4) bytes, byte j with values j, q + j, 2q + j, 3q + j from low to high bits, filler code 0.
The inner levels end at the block's root mean square (Lloyd-Max for a Gaussian, to a percent); the scale is the
least-squares fit to the chosen levels, so the codec always contracts; a zero block has scale 0. Meant for use with
error feedback (MuLoCo, arXiv 2505.23725).

Encoding is a chain of passes over two buffers, in place where it can be; their views are made once (`_Scratch`),
since making a view costs as much as a pass over 8K values.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dilocoxd.compress import loops
from dilocoxd.compress.blockint import (
    BELOW_SCALE_MIN,
    SCALE_MIN,
    decode_scales,
    load_scales,
    multiply_blocks_,
    padded,
)
from dilocoxd.compress.codec import CHUNK, Codec, Payload, check_encodable, not_encodable, store
from dilocoxd.compress.loops import GROUP

QUARTER = GROUP // 4
NARROW = 16
"""Row length from which halves are added over all rows at once: torch works row by row, and short rows are dear."""
ROUNDER = 1.5 * 2.0**23 + 170
"""Adding it to (code - 2) * 4**p, summed over p = 0..3, leaves the four codes in the lowest byte of the fp32 number."""


class Int2(Codec):
    """Four levels at -3, -1, 1, 3 times the block's scale."""

    name = "int2"
    chunk = CHUNK // 4

    def __init__(self, block: int) -> None:
        self._block = block

    def payload_bytes(self, numel: int) -> int:
        return 2 * -(-numel // self._block) + -(-numel // 4)

    def encode_chunk(self, values: Tensor, start: int, numel: int, out: Tensor) -> None:
        parts = self._parts(out, start, numel, values.numel())
        compiled = loops.found_for(values)
        if compiled:
            if not compiled.encode(values, 2, self._block, "bf16", *parts):
                raise not_encodable()
            return
        rows = padded(values, self._block).view(-1, self._block)
        maxima = torch.maximum(rows.amax(dim=1), rows.amin(dim=1).neg_())
        least, largest = maxima.aminmax()
        check_encodable(largest)
        scratch = _taken_scratch(rows.shape[0], self._block) if values.is_cpu else _Scratch(rows.shape[0], self._block)
        if float(least) >= SCALE_MIN:
            torch.div(rows, maxima.unsqueeze(1), out=scratch.unit)
            scratch.choose_codes()
        else:
            is_zero = maxima < SCALE_MIN
            torch.div(rows, maxima.masked_fill(is_zero, 1.0).unsqueeze(1), out=scratch.unit)
            scratch.choose_codes()
            scratch.choose_codes_of_zeros()
            maxima.masked_fill_(is_zero, 0.0)
        scratch.pack(values.numel(), parts[1])
        raw = torch.threshold_(scratch.fit().mul_(maxima), BELOW_SCALE_MIN, 0.0).to(torch.bfloat16)
        store(raw, parts[0])
        if values.is_cpu and not _spare_scratch and rows.numel() == self.chunk:
            _spare_scratch.append(scratch)

    def decode_chunk(self, payload: Tensor, start: int, numel: int, out: Tensor) -> None:
        parts = self._parts(payload, start, numel, out.numel())
        if loops.found:
            loops.found.decode(parts, 2, self._block, "bf16", out, None)
            return
        scales = load_scales(parts[0], "bf16")
        levels = _taken_levels(out.numel())
        unpack_levels(parts[1], out.numel(), levels)
        out.copy_(levels[: out.numel()])
        if not _spare_levels and levels.numel() == self.chunk + 3:
            _spare_levels.append(levels)
        multiply_blocks_(out, scales, self._block)

    def add_chunk_(self, payload: Tensor, start: int, numel: int, target: Tensor, factor: float) -> None:
        if loops.found:
            parts = self._parts(payload, start, numel, target.numel())
            loops.found.decode(parts, 2, self._block, "bf16", target, factor)
        else:
            super().add_chunk_(payload, start, numel, target, factor)

    def checked_payload(self, payload: Payload, numel: int) -> Tensor:
        source = super().checked_payload(payload, numel)
        decode_scales(source[: 2 * -(-numel // self._block)], "bf16")
        return source

    def _parts(self, payload: Tensor, start: int, numel: int, count: int) -> tuple[Tensor, Tensor]:
        """Scales and codes of `count` values from `start` on."""
        first, codes = start // self._block, 2 * -(-numel // self._block) + start // 4
        return (
            payload[2 * first : 2 * (first - (-count // self._block))],
            payload[codes : codes + -(-count // 4)],
        )


class _Scratch:
    """Buffers for `rows` blocks, and the views of them that encoding needs."""

    def __init__(self, rows: int, block: int) -> None:
        self.shape = rows, block
        self.unit = torch.empty(rows, block)
        """Values relative to the largest magnitude of their block."""
        self._work = torch.empty(rows, block)
        """Squares of `unit`; then the chosen codes less 2; then levels."""
        self._one = torch.tensor(1.0)
        self._narrow = torch.empty(2, rows * NARROW)
        self._unit_tree = _Tree(self.unit, self._narrow)
        self._square_tree = _Tree(self._work, self._narrow)
        full = rows * block // GROUP
        self._flat = self._work.view(-1)
        self._groups = self._flat[: full * GROUP].view(full, 4, QUARTER)
        self._weights = torch.tensor([1.0, 4.0, 16.0, 64.0]).expand(full, 1, 4).contiguous()
        self._packed = torch.empty(full, 1, QUARTER)
        self._bytes = self._packed.view(torch.int32).view(-1)

    def choose_codes(self) -> None:
        """Code 0 for `unit` < -rms, 1 up to 0, 2 below rms and 3 from rms on.

        The comparisons survive the division by rms: rounding is monotonic, -1 and 1 are fp32 numbers, and nothing
        underflows, since rms <= 1.
        """
        torch.mul(self.unit, self.unit, out=self._work)
        rms = self._square_tree.sums().div_(self.shape[1]).sqrt_()
        torch.div(self.unit, rms.unsqueeze(1), out=self._work).floor_().clamp_(-2.0, 1.0)
        self._rms = rms

    def choose_codes_of_zeros(self) -> None:
        """Where rms is 0, which it is only in zero blocks, the comparison itself."""
        rows = self._rms == 0
        self._work[rows] = (self.unit[rows] >= 0).to(torch.float32) * 3.0 - 2.0

    def pack(self, count: int, out: Tensor) -> None:
        """The codes of the first `count` values -> `out`."""
        full = count // GROUP
        if full:
            torch.bmm(self._weights, self._groups, out=self._packed).add_(ROUNDER)
            size = full * QUARTER
            if size == out.numel():
                out.copy_(self._bytes)
            else:
                out[:size].copy_(self._bytes[:size])  # keeps the lowest byte
        if count > full * GROUP:
            rest, target = self._flat[full * GROUP : count], out[full * QUARTER :]
            wide = torch.full((4 * target.numel(),), -2.0)
            wide[: rest.numel()] = rest
            packed = torch.mm(torch.tensor([[1.0, 4.0, 16.0, 64.0]]), wide.view(4, -1))
            target.copy_(packed.add_(ROUNDER).view(torch.int32).view(-1))

    def fit(self) -> Tensor:
        """float32[rows], the scale of each block in units of its largest magnitude. Overwrites codes and `unit`."""
        levels = torch.add(self._one, self._work, alpha=2, out=self._work)
        self.unit.mul_(levels)
        squares = levels.square_().sum(dim=1)  # integers, exact in any order
        return self._unit_tree.sums() / squares


class _Tree:
    """Row sums of a matrix in one fixed order (halving), so that they have the same bits for every vector width.

    The row length is a power of two, at least `NARROW`. Rows of `NARROW` lie side by side in a vector, which is added
    to itself, shifted by half a row; what the ends of two rows give is not used.
    """

    def __init__(self, rows: Tensor, narrow: Tensor) -> None:
        self._wide = []
        half = rows.shape[1] // 2
        while half > NARROW:
            self._wide.append((rows[:, :half], rows[:, half : 2 * half]))
            half //= 2
        first, second = narrow.unbind(0)
        self._last = None if half < NARROW else (rows[:, :NARROW], rows[:, NARROW : 2 * NARROW], first.view(-1, NARROW))
        source = first if self._last else rows.view(-1)
        size = source.numel()
        self._short = []
        target = second
        for half in (8, 4, 2, 1):
            self._short.append((source[: size - half], source[half:size], target[: size - half]))
            source, target = target, first if target is second else second
        self._sums = first[::NARROW]

    def sums(self) -> Tensor:
        """float32[rows]. Overwrites the matrix."""
        for lower, upper in self._wide:
            lower.add_(upper)
        if self._last:
            torch.add(self._last[0], self._last[1], out=self._last[2])
        for lower, upper, target in self._short:
            torch.add(lower, upper, out=target)
        return self._sums.clone()


_spare_scratch: list[_Scratch] = []
_spare_levels: list[Tensor] = []
"""One of each as a rule, of a full chunk: taken out while in use, so that threads never share one."""


def _taken_scratch(rows: int, block: int) -> _Scratch:
    """The spare buffers if they are for `rows` blocks, else fresh ones."""
    if rows * block != Int2.chunk:
        return _Scratch(rows, block)
    try:
        spare = _spare_scratch.pop()
    except IndexError:
        return _Scratch(rows, block)
    return spare if spare.shape == (rows, block) else _Scratch(rows, block)


def _taken_levels(numel: int) -> Tensor:
    """int8, `numel` and up to three fillers."""
    try:
        spare = _spare_levels.pop()
    except IndexError:
        spare = torch.empty(0, dtype=torch.int8)
    return spare if spare.numel() >= numel + 3 else torch.empty(max(numel, Int2.chunk) + 3, dtype=torch.int8)


def unpack_levels(packed: Tensor, numel: int, out: Tensor) -> None:
    """Packed codes -> int8 levels -3, -1, 1, 3 in the first `numel` places of `out`; up to three more are written."""
    source, levels = packed.numpy(), out.numpy()
    full = numel // GROUP
    end = full * GROUP
    if full:
        _unpack_groups(source[: full * QUARTER].reshape(full, QUARTER), levels[:end].reshape(full, 4, QUARTER))
    if numel > end:
        quarter = -(-(numel - end) // 4)
        _unpack_groups(
            source[full * QUARTER :].reshape(1, quarter), levels[end : end + 4 * quarter].reshape(1, 4, quarter)
        )


def _unpack_groups(packed: NDArray[np.uint8], levels: NDArray[np.int8]) -> None:
    """uint8[groups, q] -> int8[groups, 4, q], twice the code less 3."""
    target = levels.view(np.uint8)
    np.add(packed, packed, out=target[:, 0])
    for part in (1, 2, 3):
        np.right_shift(packed, 2 * part - 1, out=target[:, part])
    np.bitwise_and(target, 6, out=target)
    np.subtract(levels, 3, out=levels)
