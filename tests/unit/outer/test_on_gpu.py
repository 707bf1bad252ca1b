"""Encoding on a GPU: the bytes of the CPU, whatever the GPU does; on one itself where the machine has it (ADR 49)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dilocoxd.compress import blockint, floats, loops, twobit
from dilocoxd.compress.codec import Codec, NotEncodableError
from dilocoxd.config.site import SiteConfig, WorkersSection
from dilocoxd.config.site_fit import GPU_CODECS, site_problems
from dilocoxd.errors import ConfigError
from dilocoxd.outer import on_gpu
from dilocoxd.outer.on_gpu import FORMATS, OnGpu
from dilocoxd.outerworker.plan import make_plan
from tests.harness.outer_worker.daemon_end import tiny_manifest
from tests.unit.compress.cases import VARIANTS, make
from tests.unit.compress.test_exact_bits import payload_of, vectors

LABELS = [label for label in VARIANTS if label.split()[0] in FORMATS]
PIECE = 3 * 4096
LENGTHS = (1, 255, 4096, PIECE, 2 * PIECE + 4096 + 77)
GPUS = [torch.device("cuda", 0)] if torch.cuda.is_available() else []
CPU = torch.device("cpu")


def stochastic() -> Codec:
    return blockint.BlockInt(4, 128, "bf16", is_stochastic=True)


def codecs() -> list[Codec]:
    return [*map(make, LABELS), stochastic()]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_gpu, "PIECE", PIECE)


@pytest.mark.parametrize("device", [CPU, *GPUS], ids=str)
@pytest.mark.parametrize("codec", codecs(), ids=lambda codec: codec.name)
def test_pieces_of_a_device_make_the_bytes_of_the_compiled_loops(
    codec: Codec, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loops.found, "the package was built without a C compiler; install one and run make"
    for numel in LENGTHS:
        for values in vectors(numel, numel):
            try:
                expected = payload_of(codec, values)
            except NotEncodableError:
                expected = None
            with monkeypatch.context() as as_there:
                as_there.setattr(loops, "found", None)  # as on a device: the torch code
                if expected is None:
                    with pytest.raises(NotEncodableError):
                        payload_of(OnGpu(codec, device), values)
                else:
                    assert payload_of(OnGpu(codec, device), values) == expected


META = torch.device("meta")
"""A device whose tensors have no values, but know where they are: most of what a GPU refuses is refused there."""


def encode_on_meta(codec: Codec, numel: int, default: torch.device) -> None:
    values = torch.empty(numel, device=META)
    payload = torch.empty(codec.payload_bytes(numel), dtype=torch.uint8, device=META)
    with default:
        codec.encode_chunk(values, 0, numel, payload)


@pytest.fixture
def _no_values_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (blockint, twobit, floats):
        monkeypatch.setattr(module, "check_encodable", lambda magnitudes: None)
    monkeypatch.setattr(Tensor, "__float__", lambda tensor: 1.0)  # of the smallest maximum: no zero block


@pytest.mark.usefixtures("_no_values_are_asked_for")
@pytest.mark.parametrize("codec", codecs(), ids=lambda codec: codec.name)
def test_every_tensor_that_encoding_makes_is_on_the_device(codec: Codec) -> None:
    for numel in LENGTHS:
        encode_on_meta(codec, numel, META)


@pytest.mark.usefixtures("_no_values_are_asked_for")
def test_a_tensor_elsewhere_would_be_noticed() -> None:
    for codec in (make("int2"), stochastic()):
        with pytest.raises(RuntimeError, match=r"same device|device type|cpu"):
            encode_on_meta(codec, PIECE, CPU)


@pytest.mark.usefixtures("_no_values_are_asked_for")
def test_scales_are_divided_and_not_multiplied_with_a_rounded_reciprocal() -> None:
    """A GPU multiplies so if it divides by a number, and not by a tensor of its own."""
    divisors: list[object] = []

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.overloadpacket is torch.ops.aten.div:
                divisors.append(args[1])
            return func(*args, **(kwargs or {}))

    with Watched():
        blockint.encode_scales(torch.empty(3, device=META), 7, "bf16")
    assert [one.device for one in divisors if isinstance(one, Tensor)] == [META] and len(divisors) == 1


def test_a_device_without_room_leaves_this_one_to_the_cpu(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    codec, (values, *_) = make("int2"), vectors(4096, 1)
    there = OnGpu(codec, CPU)
    expected, calls = payload_of(codec, values), []

    def full(self: OnGpu, values: Tensor) -> Tensor:
        calls.append(values.numel())
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nmore")

    monkeypatch.setattr(OnGpu, "_encoded_there", full)
    for _ in range(3):
        assert payload_of(there, values) == expected
    assert len(calls) == 3, "it is asked again"
    assert capfd.readouterr().err == (
        "cpu did not encode, the CPU does it while it has no room: CUDA out of memory. Tried to allocate 20.00 MiB.\n"
    )


def test_a_broken_device_is_asked_no_more(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    codec, (values, *_) = make("int4"), vectors(4096, 1)
    there = OnGpu(codec, CPU)
    expected, calls = payload_of(codec, values), []

    def broken(self: OnGpu, values: Tensor) -> Tensor:
        calls.append(values.numel())
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(OnGpu, "_encoded_there", broken)
    for _ in range(3):
        assert payload_of(there, values) == expected
    assert len(calls) == 1
    assert capfd.readouterr().err.count("from now on: CUDA error: unspecified launch failure") == 1


@pytest.mark.parametrize("label", ["topk", "int8bins", "e3m0"])
def test_formats_that_may_come_out_otherwise_are_refused(label: str) -> None:
    with pytest.raises(ConfigError, match="is not encoded on a GPU"):
        OnGpu(make(label), CPU)


def test_the_configuration_knows_the_same_formats() -> None:
    assert GPU_CODECS == FORMATS


def test_what_is_decoded_and_summed_stays_on_the_cpu() -> None:
    """An owner's sum is computed again by others, and so is made by what they make it with."""
    codec, (values, *_) = make("int2"), vectors(4096, 1)
    there = OnGpu(codec, torch.device("meta"))  # where values have no bits
    payload, out, plain = payload_of(codec, values), torch.empty(4096), torch.empty(4096)
    there.decode(payload, out)
    codec.decode(payload, plain)
    assert torch.equal(out, plain)
    target = torch.zeros(len(payload), dtype=torch.uint8)
    there.encode_chunk(values, 0, 4096, target)
    assert bytes(target.tolist()) == payload
    assert there.square_sum_chunk(target, 0, 4096, 4096) == codec.square_sum_chunk(target, 0, 4096, 4096)


def test_a_site_without_a_gpu_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="torch finds no GPU on this machine; set it to 'cpu'"):
        on_gpu.device_of_part("cuda", 0)
    assert on_gpu.device_of_part("cpu", 0) is None


def test_parts_take_the_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert [on_gpu.device_of_part("cuda", index) for index in range(4)] == [
        torch.device("cuda", number) for number in (0, 1, 2, 0)
    ]


def test_the_plan_of_a_site_encodes_where_it_was_told_to() -> None:
    plan = make_plan(tiny_manifest(strategy={"codec": "int4", "transform": "identity"}), device=CPU)
    assert isinstance(plan.transform.codec(0, plan.segments[0]), OnGpu)
    with pytest.raises(ConfigError, match="codec topk is not encoded on a GPU"):
        make_plan(tiny_manifest(strategy={"codec": "topk", "transform": "identity"}), device=CPU)


@pytest.mark.parametrize(
    ("strategy", "what"),
    [
        ({"codec": "int2", "transform": "identity"}, ""),
        ({"codec": "topk", "transform": "identity"}, "the codec topk"),
        ({"codec": "int4", "transform": "lowrank", "lowrank_r": 4}, "the factors of low rank"),
    ],
)
def test_a_run_that_a_gpu_cannot_encode_is_refused_and_the_cpu_taken(strategy: dict[str, object], what: str) -> None:
    manifest = tiny_manifest(strategy=strategy)
    there = SiteConfig(workers=WorkersSection(encode_device="cuda"))
    problems = site_problems(manifest, there)
    assert len(problems) == bool(what)
    assert all(f"but {what} may come out otherwise" in text and text.endswith("set it to 'cpu'") for text in problems)
    assert site_problems(manifest, SiteConfig()) == []
