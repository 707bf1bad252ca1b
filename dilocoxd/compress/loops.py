"""The codecs' compiled loops (loops.c), where this installation has them: one pass over the values, the same bits.

Built with the package if there is a C compiler, and then read from beside this file; without them the torch code of
each codec does the same work in more passes. ADR 38. Lengths are checked here: C trusts what it is given.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from dilocoxd.config.footprint.loops import loops_file

GROUP: Final = 4096
"""Values per split-half group of codes."""
ScaleFormat = Literal["fp32", "bf16", "pow2", "short"]
SCALE_BYTES: Final[dict[ScaleFormat, int]] = {"fp32": 4, "bf16": 2, "pow2": 1, "short": 2}
"""Bytes of a block's scale, by its form, in the order in which loops.c counts forms."""
FORMATS: Final = tuple(SCALE_BYTES)
Bits = Literal[8, 4, 2]
_ADDRESS, _LENGTH = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES: Final = {
    "encode_int4": (ctypes.c_int, [_ADDRESS, _LENGTH, _LENGTH, ctypes.c_int, _ADDRESS, _ADDRESS]),
    "encode_int2": (ctypes.c_int, [_ADDRESS, _LENGTH, _LENGTH, _ADDRESS, _ADDRESS]),
    "decode_blocks": (
        None,
        [_ADDRESS, _ADDRESS, _LENGTH, _LENGTH, ctypes.c_int, ctypes.c_int, ctypes.c_float, ctypes.c_int, _ADDRESS],
    ),
    "encode_columns": (
        ctypes.c_int,
        [_ADDRESS, _LENGTH, _LENGTH, _LENGTH, ctypes.c_int, _ADDRESS, _ADDRESS],
    ),
    "decode_columns": (None, [_ADDRESS, _ADDRESS, _LENGTH, _LENGTH, _LENGTH, ctypes.c_int, _ADDRESS]),
    "narrow": (None, [_ADDRESS, _LENGTH, _ADDRESS]),
    "square_sums": (None, [_ADDRESS, _LENGTH, _LENGTH, ctypes.c_int, _ADDRESS]),
    "folded_squares": (ctypes.c_double, [_ADDRESS, _LENGTH, _ADDRESS]),
    "nesterov": (None, [_ADDRESS, _ADDRESS, _ADDRESS, _LENGTH, ctypes.c_float, ctypes.c_float]),
    "largest_places": (ctypes.c_int, [_ADDRESS, _LENGTH, _LENGTH, _LENGTH, _ADDRESS, _ADDRESS]),
}


class Loops:
    """The library at `path`. Raises OSError if it cannot be loaded, AttributeError if it is another one."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._library = library

    def encode(self, values: Tensor, bits: Bits, block: int, scale: ScaleFormat, scales: Tensor, codes: Tensor) -> bool:
        """float32[n] -> wire forms of scales and codes; False: not encodable. `bits`: 4, or 2 with scales in bf16."""
        numel = values.numel()
        where = _place(values, torch.float32, numel), numel, _checked_block(block)
        out = _place(scales, torch.uint8, -(-numel // block) * SCALE_BYTES[scale]), _place_of_codes(codes, numel, bits)
        if bits == 2:
            return not self._library.encode_int2(*where, *out)
        return not self._library.encode_int4(*where, FORMATS.index(scale), *out)

    def decode(
        self,
        payload: tuple[Tensor, Tensor],
        bits: Bits,
        block: int,
        scale: ScaleFormat,
        out: Tensor,
        factor: float | None,
    ) -> None:
        """out <- code * scale; with a factor, out <- out + code * scale * factor. `payload`: scales and codes."""
        numel = out.numel()
        scales, codes = payload
        self._library.decode_blocks(
            _place(scales, torch.uint8, -(-numel // _checked_block(block)) * SCALE_BYTES[scale]),
            _place_of_codes(codes, numel, bits), numel, block, bits, FORMATS.index(scale),
            1.0 if factor is None else factor, factor is not None, _place(out, torch.float32, numel),
        )  # fmt: skip

    def encode_columns(self, columns: Tensor, bits: Bits, block: int, scales: Tensor, codes: Tensor) -> bool:
        """float32[columns, length] -> short scales, and codes of 8 or 4 bits, of each column; False: not encodable."""
        places = _places_of_columns(columns, bits, block, scales, codes)
        return not self._library.encode_columns(places[0], *columns.shape, block, bits, *places[1:])

    def decode_columns(self, payload: tuple[Tensor, Tensor], bits: Bits, block: int, out: Tensor) -> None:
        """out <- code * scale, float32[columns, length]. `payload`: scales and codes."""
        place, *places = _places_of_columns(out, bits, block, *payload)
        self._library.decode_columns(*places, *out.shape, block, bits, place)

    def narrow(self, wide: Tensor, out: Tensor) -> None:
        """out <- float64[n] rounded once to float32."""
        numel = out.numel()
        place = _place(wide, torch.float64, numel)
        self._library.narrow(place, numel, _place(out, torch.float32, numel))

    def square_sums(self, codes: Tensor, bits: Bits, block: int, numel: int) -> Tensor:
        """float64[blocks]: sums of squared codes."""
        sums = torch.empty(-(-numel // _checked_block(block)), dtype=torch.float64)
        self._library.square_sums(_place_of_codes(codes, numel, bits), numel, block, bits, sums.data_ptr())
        return sums

    def folded_squares(self, values: Tensor, work: Tensor) -> float:
        """Sum of squares of float32[n], in the order of `codec.folded`; `work`: float64, at least (n + 1) / 2."""
        numel = values.numel()
        if 2 * work.numel() < numel:
            raise ValueError(f"room for {work.numel()} sums of {numel} squares")
        place = _place(work, torch.float64, work.numel())
        return float(self._library.folded_squares(_place(values, torch.float32, numel), numel, place))

    def nesterov(self, x: Tensor, m: Tensor, g: Tensor, lr: float, momentum: float) -> None:
        """m <- momentum * m + g; x <- x - lr * (g + momentum * m). All float32[n]."""
        numel = x.numel()
        places = (_place(one, torch.float32, numel) for one in (x, m, g))
        self._library.nesterov(*places, numel, lr, momentum)

    def largest_places(self, rows: Tensor, k: int, groups: int) -> tuple[Tensor, Tensor] | None:
        """(int64[rows, k] places of the k largest magnitudes, ascending; bool[rows], false where equal magnitudes leave
        a choice and the places mean nothing). None: not encodable. `groups` divides GROUP and is at least k."""
        count = rows.shape[0]
        if not 0 < k <= groups <= GROUP // 2 or GROUP % groups:
            raise ValueError(f"{k} of {groups} groups")
        place = _place(rows, torch.float32, count * GROUP)
        places, is_clear = torch.empty(count, k, dtype=torch.int64), torch.empty(count, dtype=torch.bool)
        if self._library.largest_places(place, count, k, groups, places.data_ptr(), is_clear.data_ptr()):
            return None
        return places, is_clear


def _place(values: Tensor, dtype: torch.dtype, numel: int) -> int:
    """Address of `numel` numbers."""
    if values.dtype != dtype or values.numel() != numel or not values.is_contiguous():
        raise ValueError(f"{values.dtype}{list(values.shape)} where {dtype}[{numel}] must be")
    return values.data_ptr()


def _place_of_codes(codes: Tensor, numel: int, bits: Bits) -> int:
    return _place(codes, torch.uint8, (numel * bits + 7) // 8)


def _places_of_columns(columns: Tensor, bits: Bits, block: int, scales: Tensor, codes: Tensor) -> tuple[int, int, int]:
    """Addresses of float32[columns, length], of its scales and of its codes."""
    count, length = columns.shape
    if bits not in (8, 4) or block < 1:
        raise ValueError(f"columns of {bits} bits in blocks of {block}")
    return (
        _place(columns, torch.float32, columns.numel()),
        _place(scales, torch.uint8, count * -(-length // block) * SCALE_BYTES["short"]),
        _place(codes, torch.uint8, count * ((length * bits + 7) // 8)),
    )


def _checked_block(block: int) -> int:
    if block < 1 or GROUP % block:
        raise ValueError(f"blocks of {block} do not fill a group of {GROUP}")
    return block


def found_in(folder: Path) -> Loops | None:
    """The library of this version of Python in `folder`; None also if it is of another machine or version."""
    path = loops_file(folder)
    if path is None:
        return None
    try:
        return Loops(path)
    except (OSError, AttributeError):
        return None


found: Loops | None = found_in(Path(__file__).parent)
"""None: the codecs work with torch alone."""


def found_for(values: Tensor) -> Loops | None:
    """`found`, if these are in memory that C reads; None on a device."""
    return found if values.is_cpu else None
