"""Values go to a device and come back as they are, though the device copies late, and only as late as it may.

`LateDevice` stands where CudaEngine does: it carries a copy out when somebody waits for it, and no earlier. Memory that
is used again too soon, or an answer that is read too soon, has other values then. Where there is a GPU the same tests
run on it, too.
"""

import mmap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dilocoxd.trainer.parameters.copies import (
    CopyEngine,
    CudaEngine,
    PlainCopies,
    StreamedCopies,
    copies_for,
    slices_of,
    whole_pages,
)
from dilocoxd.trainer.parameters.flat import FlatParameters
from dilocoxd.wire.layout import ParamSpec, make_layout

PIECE = 100
SHAPES = ((7,), (33, 10), (5, 3, 4), (1, 250), ())
"""Some less than a slice, one of several, one whose only row is longer."""


class LateDevice:
    """Copies are queued, behind what the device was given before; whoever waits for a mark has them done up to it."""

    device = torch.device("cpu")

    def __init__(self, *, can_pin: bool = True) -> None:
        self.work: list[Callable[[], object]] = []
        """Of the device's other stream: done when copies are told to come after it."""
        self.num_staged = 0
        self.pinned: list[tuple[int, int]] = []
        self._can_pin = can_pin
        self._queue: list[Callable[[], object]] = []
        self._num_done = 0
        self._has_begun = False

    def staging(self, numel: int) -> Tensor:
        self.num_staged += 1
        return torch.full((numel,), torch.nan)

    def pin(self, address: int, size: int) -> bool:
        self.pinned.append((address, size))
        return self._can_pin

    def begin(self) -> None:
        self._queue += self.work
        self.work.clear()
        self._has_begun = True

    def copy(self, target: Tensor, source: Tensor) -> None:
        assert self._has_begun, "a copy that does not wait for the work before it"
        self._queue.append(lambda: target.copy_(source))

    def mark(self) -> Any:
        return len(self._queue)

    def wait(self, mark: Any) -> None:
        for each in self._queue[self._num_done : mark]:
            each()
        self._num_done = max(self._num_done, mark)

    @property
    def is_idle(self) -> bool:
        return self._num_done == len(self._queue)


def engines() -> list[Callable[[], Any]]:
    gpus = [lambda: CudaEngine(torch.device("cuda", 0))] if torch.cuda.is_available() else []
    return [LateDevice, lambda: LateDevice(can_pin=False), *gpus]


def device_of(engine: Any) -> torch.device:
    found: torch.device = getattr(engine, "device", torch.device("cuda", 0))
    return found


def values(seed: int = 1) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(shape) for shape in SHAPES]


@pytest.mark.parametrize("make", engines())
@pytest.mark.parametrize("is_shared", [False, True])
def test_what_is_uploaded_is_there_when_the_host_goes_on(make: Callable[[], CopyEngine], is_shared: bool) -> None:
    engine = make()
    copies = StreamedCopies(engine, PIECE)
    wanted = values()
    vector = torch.cat([one.flatten() for one in wanted]) if is_shared else None
    host = [one.clone() for one in wanted]
    if vector is not None:
        host = [
            part.view(one.shape)
            for part, one in zip(vector.split([one.numel() for one in wanted]), wanted, strict=True)
        ]
        copies.pin(vector, [(0, vector.numel())])
    device = [torch.zeros(shape, device=device_of(engine)) for shape in SHAPES]
    copies.upload(zip(host, device, strict=True))
    for one in host:
        one.fill_(torch.nan)
    assert all(torch.equal(one.cpu(), other) for one, other in zip(device, wanted, strict=True))
    if isinstance(engine, LateDevice):
        assert engine.is_idle
        assert engine.num_staged == (0 if is_shared and engine.pin(0, 0) else 2), "pinned memory needs no other"


@pytest.mark.parametrize("make", engines())
def test_what_is_downloaded_was_taken_when_the_host_goes_on(make: Callable[[], CopyEngine]) -> None:
    engine = make()
    copies = StreamedCopies(engine, PIECE)
    host, device = values(1), [one.to(device_of(engine)) for one in values(2)]
    copies.download(zip(host, device, strict=True), Tensor.sub_)
    for one in device:
        one.fill_(torch.nan)
    wanted = [one - other for one, other in zip(values(1), values(2), strict=True)]
    assert all(torch.equal(one, other) for one, other in zip(host, wanted, strict=True))


def test_copies_come_after_what_the_device_was_given_before() -> None:
    device, engine = torch.zeros(300), LateDevice()
    engine.work.append(lambda: device.fill_(3.0))
    host = torch.zeros(300)
    StreamedCopies(engine, PIECE).download([(host, device)], Tensor.copy_)
    assert torch.equal(host, torch.full((300,), 3.0))
    engine.work.append(lambda: device.mul_(2.0))
    StreamedCopies(engine, PIECE).upload([(torch.ones(300), device)])
    assert torch.equal(device, torch.ones(300)), "and not under what the step before still computes"


@pytest.mark.parametrize("make", engines())
def test_columns_of_a_matrix_and_what_lies_otherwise_in_memory_go_as_well(make: Callable[[], CopyEngine]) -> None:
    engine = make()
    copies = StreamedCopies(engine, PIECE)
    whole = torch.arange(40 * 9.0).view(40, 9)
    copies.pin(whole, [(0, whole.numel())])
    block = torch.zeros(40, 4, device=device_of(engine))
    turned = torch.zeros(9, 40, device=device_of(engine)).t()
    copies.upload([(whole[:, 3:7], block), (whole, turned)])
    assert torch.equal(block.cpu(), whole[:, 3:7])
    assert torch.equal(turned.cpu(), whole)
    back = torch.zeros(40, 9)
    copies.download([(back[:, 3:7], block)], Tensor.copy_)
    assert torch.equal(back[:, 3:7], whole[:, 3:7])
    assert not back[:, :3].any()


@pytest.mark.parametrize("make", engines())
def test_parameters_on_a_device_are_what_they_are_on_a_cpu(make: Callable[[], CopyEngine]) -> None:
    """A life of a phase: anchor, steps, pseudo-gradient, another anchor under the steps, evaluation."""
    layout = make_layout((ParamSpec("a.weight", (30, 7)), ParamSpec("b.bias", (11,))), 1 << 20)

    def life(copies: PlainCopies | None, device: torch.device) -> list[Tensor]:
        torch.manual_seed(3)
        named = {name: nn.Parameter(torch.zeros(layout.shape(name), device=device)) for name in ("a.weight", "b.bias")}
        flat = FlatParameters(named.items(), layout)
        if copies is not None:
            flat._copies = copies
        shared = mmap.mmap(-1, 4 * layout.numel)
        anchor = flat.view(shared)
        flat.pin(anchor)
        phase = anchor.clone().normal_()
        anchor.normal_()
        flat.replace(anchor)
        with torch.no_grad():
            for param in named.values():
                param.add_(torch.randn(param.shape).to(device))
        flat.subtract_from(phase)
        anchor.normal_()
        flat.merge(anchor)
        found = [phase, *(param.detach().cpu().clone() for param in named.values())]
        flat.load(anchor.clone().normal_())
        return [*found, *(param.detach().cpu() for param in named.values())]

    engine = make()
    there = life(StreamedCopies(engine, PIECE), device_of(engine))
    here = life(None, torch.device("cpu"))
    assert all(torch.equal(one, other) for one, other in zip(there, here, strict=True))


def test_only_float32_on_one_gpu_is_streamed() -> None:
    assert type(copies_for([torch.zeros(2), torch.zeros(3)])) is PlainCopies
    assert type(copies_for([])) is PlainCopies
    if torch.cuda.is_available():
        on_gpu = torch.zeros(2, device="cuda")
        assert type(copies_for([on_gpu])) is StreamedCopies
        assert type(copies_for([on_gpu, torch.zeros(2)])) is PlainCopies
        assert type(copies_for([on_gpu.bfloat16()])) is PlainCopies


@pytest.mark.parametrize(
    ("rows", "width", "piece"), [(1, 1, 1), (10, 3, 10), (10, 30, 10), (7, 0, 5), (1000, 64, 4096)]
)
def test_slices_hold_every_row_once_and_no_more_values_than_they_may(rows: int, width: int, piece: int) -> None:
    found = slices_of(rows, width, piece)
    assert [row for each in found for row in range(each.start, each.stop)] == list(range(rows))
    assert all((each.stop - each.start) * width <= max(piece, width) for each in found)


def test_pages_are_pinned_once() -> None:
    page = mmap.PAGESIZE
    spans = [(page // 2, page), (page, page + 8), (3 * page - 4, 3 * page + 4), (9 * page, 9 * page + 4)]
    assert whole_pages(spans) == [(0, 4 * page), (9 * page, 10 * page)]
    engine = LateDevice()
    vector = torch.frombuffer(mmap.mmap(-1, 4 * page), dtype=torch.float32)
    StreamedCopies(engine).pin(vector, [(10, 20), (20, 30)])
    assert engine.pinned == [(vector.data_ptr(), page)]
