"""The owner's part of an exchange: weighted mean of the shares of one segment, encoded once.

    v = w_1 c_1 + w_2 c_2 + ... + residual        fp32, in the given (sorted peer) order, multiply and add rounded apart
    result = encode(v);  residual <- v - decode(result)
The owner uses the decoded result like everybody else, so all peers hold the same bits; what the second encoding lost
stays in the owner's residual of that segment and joins the next mean (CocktailSGD's server side; ALGORITHMS 4.3).
`reduce_segment` changes nothing but its output, so an attempt can be repeated; `settle_residual_` runs on commit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dilocoxd.compress.codec import MAGNITUDE_MAX, Codec, Payload
from dilocoxd.errors import WireError


class BadShareError(WireError):
    """Share number `position` (in the given order) does not decode; its sender is to blame."""

    def __init__(self, position: int, detail: str) -> None:
        super().__init__("bad_payload", detail)
        self.position = position


def weighted_mean_(codec: Codec, shares: Sequence[Payload], weights: Sequence[float], out: Tensor) -> None:
    """out <- sum of weight * decoded share, in the given order. Raises BadShareError.

    `weights` come from `rounding.mean_weights`. The mean saturates at +-2**64: no share can make it unencodable.
    """
    sources = [_checked(codec, share, out.numel(), position) for position, share in enumerate(shares)]
    for start, stop in codec.chunks(out.numel()):
        _mean_of_chunk(codec, sources, weights, (start, out.numel()), out[start:stop])


def _mean_of_chunk(
    codec: Codec, sources: Sequence[Tensor], weights: Sequence[float], place: tuple[int, int], mean: Tensor
) -> None:
    """`place`: where the chunk begins, and the length of the whole."""
    share_values = torch.empty_like(mean) if len(sources) > 1 else mean
    for position, (source, weight) in enumerate(zip(sources, weights, strict=True)):
        target = mean if position == 0 else share_values
        try:
            codec.decode_chunk(source, *place, target)
        except WireError as error:
            raise BadShareError(position, error.detail) from error
        target.mul_(weight)
        if position:
            mean.add_(share_values)
    mean.clamp_(-MAGNITUDE_MAX, MAGNITUDE_MAX)


def reduce_in_chunks(
    codec: Codec,
    shares: Sequence[Payload],
    weights: Sequence[float],
    residual: Tensor | None,
    numel: int,
    out: bytearray | memoryview | Tensor,
) -> None:
    """`reduce_segment` without the values: only a chunk of them exists at a time. Raises BadShareError, `out` is then
    undefined."""
    sources = [_checked(codec, share, numel, position) for position, share in enumerate(shares)]
    target = codec.target_payload(out, numel)
    for start, stop in codec.chunks(numel):
        mean = torch.empty(stop - start)
        _mean_of_chunk(codec, sources, weights, (start, numel), mean)
        if residual is not None:
            mean.add_(residual[start:stop]).clamp_(-MAGNITUDE_MAX, MAGNITUDE_MAX)
        codec.encode_chunk(mean, start, numel, target)
    codec.finish_payload(target, numel)


def reduce_segment(
    codec: Codec,
    shares: Sequence[Payload],
    weights: Sequence[float],
    residual: Tensor | None,
    values: Tensor,
    out: bytearray | memoryview | Tensor,
) -> None:
    """Encode mean + residual of one segment into `out`. Raises BadShareError.

    `residual`: float32[n] that the owner kept, unchanged here, or None without owner feedback. `values`: float32[n]
    scratch, afterwards what was encoded.
    """
    _owner_values_(codec, shares, weights, residual, values)
    codec.encode(values, out)


def settle_residual_(
    codec: Codec, shares: Sequence[Payload], weights: Sequence[float], residual: Tensor, result: Payload
) -> None:
    """residual <- (mean + residual) - decode(result): the entry with `result` committed. Raises BadShareError."""
    values = torch.empty_like(residual)
    _owner_values_(codec, shares, weights, residual, values)
    residual.copy_(values)
    codec.decode(result, values)
    residual.sub_(values)


def _owner_values_(
    codec: Codec, shares: Sequence[Payload], weights: Sequence[float], residual: Tensor | None, values: Tensor
) -> None:
    weighted_mean_(codec, shares, weights, values)
    if residual is not None:
        values.add_(residual).clamp_(-MAGNITUDE_MAX, MAGNITUDE_MAX)


def _checked(codec: Codec, share: Payload, numel: int, position: int) -> Tensor:
    try:
        return codec.checked_payload(share, numel)
    except WireError as error:
        raise BadShareError(position, error.detail) from error
