"""A rank adds what one contribution did to its own parameters, and makes no page of LEFT_OUT that nobody wrote."""

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from dilocoxd.trainer.parameters import flat as flat_parameters
from dilocoxd.trainer.parameters.flat import FlatParameters
from dilocoxd.trainer.parameters.shared import SharedVectors
from dilocoxd.wire.layout import ParamSpec, make_layout
from dilocoxd.wire.local import buffers
from dilocoxd.wire.local.left_out import LeftOutOf

NUMEL = 64 * mmap.PAGESIZE // 4
WRITTEN = slice(NUMEL // 2, NUMEL // 2 + mmap.PAGESIZE // 4)


@dataclass
class Link:
    """What a rank has of its daemon."""

    buffers: dict[str, mmap.mmap] = field(default_factory=dict)
    descriptors: dict[str, int] = field(default_factory=dict)

    def attach(self, name: str, size: int) -> None:
        fd = os.memfd_create(name)
        os.ftruncate(fd, size)
        self.buffers[name], self.descriptors[name] = mmap.mmap(fd, size), fd

    def allocated(self, name: str) -> int:
        return 512 * os.fstat(self.descriptors[name]).st_blocks


@pytest.fixture
def link() -> Iterator[Link]:
    made = Link()
    for name in (buffers.ANCHOR, buffers.PHASE):
        made.attach(name, 4 * NUMEL)
    yield made
    for fd in made.descriptors.values():
        os.close(fd)


def shared(link: Any, param: nn.Parameter) -> tuple[SharedVectors, FlatParameters]:
    layout = make_layout((ParamSpec("w", tuple(param.shape)),), NUMEL)
    flat = FlatParameters([("w", param)], layout)
    return SharedVectors(link, flat), flat


@pytest.mark.parametrize("is_contiguous", [True, False])
def test_parameters_are_the_anchor_and_what_was_left_out(
    link: Link, is_contiguous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flat_parameters, "PIECE", 1000)
    link.attach(buffers.LEFT_OUT, 4 * NUMEL + 64)
    values = torch.zeros(64, NUMEL // 64)
    param = nn.Parameter(values if is_contiguous else values.t().contiguous().t())
    vectors, flat = shared(link, param)
    assert vectors.left_out_at(1) is None
    vectors.anchor().copy_(torch.arange(float(NUMEL)))
    more = torch.zeros(NUMEL)
    more[WRITTEN] = 0.25
    os.pwrite(link.descriptors[buffers.LEFT_OUT], more[WRITTEN].numpy().tobytes(), 4 * WRITTEN.start)
    os.pwrite(link.descriptors[buffers.LEFT_OUT], LeftOutOf(1, 3).encode(), 4 * NUMEL)
    before = link.allocated(buffers.LEFT_OUT)
    assert (vectors.left_out_at(1), vectors.left_out_at(2)) == (3, None)
    flat.load(vectors.anchor(), vectors.left_out())
    assert torch.equal(param.detach().reshape(-1), torch.arange(float(NUMEL)) + more)
    assert link.allocated(buffers.LEFT_OUT) == before == 2 * mmap.PAGESIZE, "reading made pages"


def test_a_run_without_the_buffer_has_nothing_to_leave_out(link: Link) -> None:
    vectors, _ = shared(link, nn.Parameter(torch.zeros(NUMEL)))
    assert vectors.left_out_at(1) is None
