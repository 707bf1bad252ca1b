"""Parameters cut by rows and by columns, unevenly: together all ranks do to the flat vector what one rank does.

The tensors are torch's own, of a group whose ranks come one after the other: nothing here is sent.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from dilocoxd.trainer.parallel.local import Extent, extent_of
from dilocoxd.trainer.parallel.mesh import MeshPlace
from dilocoxd.trainer.parameters import flat as flat_parameters
from dilocoxd.trainer.parameters.flat import FlatParameters
from dilocoxd.trainer.parameters.mixing import MixedParameters
from dilocoxd.trainer.parameters.overlay import EagerParameters
from dilocoxd.wire.layout import ParamSpec, make_layout
from tests.unit.outer.toys import nesterov

SHARD, TENSOR = 2, 3
SHAPES = {"model.layers.0.by_rows": (91, 20), "model.layers.0.by_columns": (90, 50), "model.norm.weight": (5,)}
LAYOUT = make_layout([ParamSpec(name, shape) for name, shape in SHAPES.items()], 4096)
PLACEMENTS: dict[str, list[Placement]] = {
    "model.layers.0.by_rows": [_StridedShard(0, split_factor=TENSOR), Shard(0)],
    "model.layers.0.by_columns": [Shard(0), Shard(1)],
    "model.norm.weight": [Shard(0)],
}
"""As fully_shard leaves them behind ColwiseParallel and RowwiseParallel; the norm lies on the shards alone."""
KINDS: dict[str, Callable[..., FlatParameters]] = {
    "plain": FlatParameters,
    "streaming": lambda *given, **more: MixedParameters(*given, 3, 0.25, **more),
    "eager": lambda *given, **more: EagerParameters(*given, nesterov(0.4, 0.9), **more),
}


def vector(seed: int) -> Tensor:
    return torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(seed))


def chunk(values: Tensor, parts: int, number: int, dim: int) -> Tensor:
    """As both of torch's ways to cut do it; there may be fewer parts."""
    found = values.chunk(parts, dim)
    return found[number] if number < len(found) else values.narrow(dim, 0, 0)


def part_of(name: str, whole: Tensor, shard: int, tensor: int) -> Tensor:
    """What torch leaves on this rank: cut among `tensor` first."""
    dims = {"model.layers.0.by_rows": 0, "model.layers.0.by_columns": 1}
    rest = chunk(whole, TENSOR, tensor, dims[name]) if name in dims else whole
    return chunk(rest, SHARD, shard, 0)


@pytest.fixture
def ranks() -> Iterator[Callable[[int], dict[str, Tensor]]]:
    """Parameters of a rank, all zero. No nn.Parameter: torch remembers for ever whose mesh an operation was on."""

    def at(rank: int) -> dict[str, Tensor]:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=SHARD * TENSOR)
        mesh = init_device_mesh("cpu", (SHARD, TENSOR), mesh_dim_names=("shard", "tensor"))
        return {name: cut(name, mesh, *divmod(rank, TENSOR)) for name in SHAPES}

    yield at
    dist.destroy_process_group()


def cut(name: str, mesh: DeviceMesh, shard: int, tensor: int, rows: int = 0) -> DTensor:
    """What lies here of a parameter; `rows`: a number of them that is not torch's."""
    whole = torch.zeros(SHAPES[name])
    part = torch.zeros(rows, *whole.shape[1:]) if rows else part_of(name, whole, shard, tensor).contiguous()
    place = mesh if len(PLACEMENTS[name]) == 2 else mesh["shard"]
    return DTensor.from_local(part, place, PLACEMENTS[name], run_check=False, shape=whole.shape, stride=whole.stride())


def live(kind: str, parameters: dict[str, Tensor], phase: Tensor, tensor: int = 0) -> list[Tensor]:
    """Some phases of a rank that trains by adding what is written in a vector; what it holds at last."""
    flat = KINDS[kind](parameters.items(), LAYOUT, place=MeshPlace(tensor, tensor=TENSOR))
    flat.replace(vector(1))
    for number in range(3):
        flat_parameters.FlatParameters.load(
            flat, vector(10 + number), lambda start, stop: vector(20)[start:stop].clone()
        )
        begun = phase.clone()
        flat.subtract_from(phase)
        if kind == "eager":
            flat.note_offered(vector(30 + number))
        flat.mark_base()
        if kind == "streaming":
            flat.mix(vector(40 + number), number)
        else:
            flat.begin(vector(40 + number), 2)
        flat.merge(vector(50 + number))
        assert kind != "plain" or not torch.equal(begun, phase)
    return [held.part.clone() for held in flat._held]


@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_together_do_what_one_does(
    ranks: Callable[[int], dict[str, Tensor]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flat_parameters, "PIECE", 300)
    expected_phase, phase = vector(2), vector(2)
    expected = live(kind, {name: torch.zeros(shape) for name, shape in SHAPES.items()}, expected_phase)
    for rank in range(SHARD * TENSOR):
        shard, tensor = divmod(rank, TENSOR)
        parts = live(kind, ranks(rank), phase, tensor)
        for name, whole, part in zip(SHAPES, expected, parts, strict=True):
            assert torch.equal(part, part_of(name, whole, shard, tensor)), (rank, name)
    assert torch.equal(phase, expected_phase), "each value once"


def test_every_row_is_moved_by_one_rank(ranks: Callable[[int], dict[str, Tensor]]) -> None:
    moved = torch.zeros(LAYOUT.numel)
    for rank in range(SHARD * TENSOR):
        flat = FlatParameters(ranks(rank).items(), LAYOUT, place=MeshPlace(rank, shard=SHARD, tensor=TENSOR))
        for start, stop in flat.stretches():
            moved[start:stop] += 1
    assert bool((moved == 1).all())


def test_a_part_that_is_cut_in_another_way_is_no_part_of_ours(ranks: Callable[[int], dict[str, Tensor]]) -> None:
    by_columns: Any = ranks(1)["model.layers.0.by_columns"]
    assert extent_of(by_columns) == Extent((90, 50), 0, 45, 17, 17)
    with pytest.raises(AssertionError, match=r"\(10, 20\) here, not \[16, 20\]"):
        extent_of(cut("model.layers.0.by_rows", by_columns.device_mesh, 0, 1, rows=10))


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 4500), (3, 7), (30, 170), (50, 100), (99, 101), (4499, 4500), (60, 60)]
)
def test_stretch_of_the_flat_values_is_found_in_each_block(start: int, stop: int) -> None:
    flat = torch.zeros(90 * 50)
    flat[start:stop] = 1
    for top, rows in ((0, 31), (31, 59)):
        for left, columns in ((0, 33), (33, 17)):
            block = Extent((90, 50), top, rows, left, columns)
            found = torch.zeros(rows, columns)
            for here in block.within(start, stop):
                found[here] += 1
            assert torch.equal(found, block.of_matrix(flat.view(90, 50)))
