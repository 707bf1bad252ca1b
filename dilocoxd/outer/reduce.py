"""The owner's part of an exchange: weighted mean of the shares of one segment, encoded once.

    v = w_1 c_1 + w_2 c_2 + ... + residual        fp32, in the given (sorted peer) order, multiply and add rounded apart
c_i is what of share i is counted (outer/clipping.py): all of it, unless its norm stands out.
    result = encode(v);  residual <- v - decode(result)
The owner uses the decoded result like everybody else, so all peers hold the same bits; what the second encoding lost
stays in the owner's residual of that segment and joins the next mean (CocktailSGD's server side; ALGORITHMS 4.3).
`reduce_in_chunks` changes nothing but its output, so an attempt can be repeated; `settle_in_chunks_` runs on commit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dilocoxd.compress.codec import MAGNITUDE_MAX, Codec, Payload, square_sum
from dilocoxd.errors import WireError
from dilocoxd.outer.clipping import Weighing
from dilocoxd.wire.local.outer_worker import SKETCH_NUMBERS

Weights = Sequence[float] | Weighing
"""Of the shares in their order; a plain sequence counts every share whole."""


class BadShareError(WireError):
    """Share number `position` (in the given order) does not decode; its sender is to blame."""

    def __init__(self, position: int, detail: str) -> None:
        super().__init__("bad_payload", detail)
        self.position = position


def weighted_mean_(codec: Codec, shares: Sequence[Payload], weights: Weights, out: Tensor) -> None:
    """out <- sum of weight * what is counted of the share, in the given order. Raises BadShareError.

    `weights` come from `rounding.mean_weights`. The mean saturates at +-2**64: no share can make it unencodable.
    """
    sources = [_checked(codec, share, out.numel(), position) for position, share in enumerate(shares)]
    for start, stop in codec.chunks(out.numel()):
        _mean_of_chunk(codec, sources, weights, (start, out.numel()), out[start:stop])


def share_norms(codec: Codec, shares: Sequence[Payload], numel: int, center: Tensor | None = None) -> list[float]:
    """Distance of each decoded share from `center` (None: from 0), with the same bits on every machine.

    Raises BadShareError.
    """
    norms = []
    for position, share in enumerate(shares):
        source = _checked(codec, share, numel, position)
        total = 0.0
        for place in codec.chunks(numel):
            try:
                total += _square_sum(codec, source, (*place, numel), center)
            except WireError as error:
                raise BadShareError(position, error.detail) from error
        norms.append(math.sqrt(total))
    return norms


def share_sketches(codec: Codec, shares: Sequence[Payload], numel: int) -> bytes:
    """A sketch of each share, from its first chunk: SKETCH_NUMBERS sums of values with the signs of a fixed pattern.

    Cosines of sketches are those of the shares within about 1 / 8. For alarms only: bits may differ between machines.
    """
    stop = next(stop for _, stop in codec.chunks(numel)) if numel else 0
    count = stop // SKETCH_NUMBERS
    if not count:
        return b""
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (1, count), generator=generator).mul_(2).sub_(1).float()
    values = torch.empty(stop)
    sketches = torch.empty(len(shares), SKETCH_NUMBERS)
    for position, share in enumerate(shares):
        codec.decode_chunk(_checked(codec, share, numel, position), 0, numel, values)
        torch.mm(
            signs, values[: count * SKETCH_NUMBERS].view(count, SKETCH_NUMBERS), out=sketches[position : position + 1]
        )
    return bytes(sketches.view(torch.uint8).numpy().data)


def _square_sum(codec: Codec, source: Tensor, place: tuple[int, int, int], center: Tensor | None) -> float:
    """`place`: start and end of the chunk, length of the whole."""
    start, stop, numel = place
    if center is None:
        return codec.square_sum_chunk(source, start, numel, stop - start)
    values = torch.empty(stop - start)
    codec.decode_chunk(source, start, numel, values)
    return square_sum(values.sub_(center[start:stop]))


def _mean_of_chunk(
    codec: Codec, sources: Sequence[Tensor], weights: Weights, place: tuple[int, int], mean: Tensor
) -> None:
    """`place`: where the chunk begins, and the length of the whole."""
    weighing = weights if isinstance(weights, Weighing) else Weighing(weights)
    assert len(weighing.weights) == len(sources), "one weight for each share"
    for position, source in enumerate(sources):
        try:
            if position and weighing.is_whole(position):
                codec.add_chunk_(source, *place, mean, weighing.weights[position])
                continue
            target = torch.empty_like(mean) if position else mean
            codec.decode_chunk(source, *place, target)
        except WireError as error:
            raise BadShareError(position, error.detail) from error
        weighing.apply_(target, position, place[0])
        if position:
            mean.add_(target)
    mean.clamp_(-MAGNITUDE_MAX, MAGNITUDE_MAX)


def reduce_in_chunks(
    codec: Codec,
    shares: Sequence[Payload],
    weights: Weights,
    residual: Tensor | None,
    numel: int,
    out: bytearray | memoryview | Tensor,
) -> None:
    """Encode mean + residual of one segment into `out`. Raises BadShareError, `out` is then undefined.

    `residual`: float32[numel] that the owner kept, unchanged here, or None without owner feedback. Only a chunk of the
    values exists at a time.
    """
    sources = [_checked(codec, share, numel, position) for position, share in enumerate(shares)]
    target = codec.target_payload(out, numel)
    for start, stop in codec.chunks(numel):
        mean = torch.empty(stop - start)
        _mean_of_chunk(codec, sources, weights, (start, numel), mean)
        if residual is not None:
            mean.add_(residual[start:stop]).clamp_(-MAGNITUDE_MAX, MAGNITUDE_MAX)
        codec.encode_chunk(mean, start, numel, target)
    codec.finish_payload(target, numel)


def settle_in_chunks_(
    codec: Codec, shares: Sequence[Payload], weights: Weights, residual: Tensor, result: Payload
) -> None:
    """residual <- (mean + residual) - decode(result): the entry with `result` committed.

    Only a chunk of the values exists at a time. Raises BadShareError and, for `result`, WireError; the residual is then
    undefined.
    """
    numel = residual.numel()
    sources = [_checked(codec, share, numel, position) for position, share in enumerate(shares)]
    reduced = codec.checked_payload(result, numel)
    for start, stop in codec.chunks(numel):
        values, rest = torch.empty(stop - start), residual[start:stop]
        _mean_of_chunk(codec, sources, weights, (start, numel), values)
        rest.add_(values).clamp_(-MAGNITUDE_MAX, MAGNITUDE_MAX)
        codec.add_chunk_(reduced, start, numel, rest, -1.0)


def _checked(codec: Codec, share: Payload, numel: int, position: int) -> Tensor:
    try:
        return codec.checked_payload(share, numel)
    except WireError as error:
        raise BadShareError(position, error.detail) from error
