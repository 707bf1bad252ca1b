"""The compiled loops give the bits of the torch code beside them, whatever the compiler made of them (ADR 38)."""

from __future__ import annotations

import os
import subprocess
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from dilocoxd.compress import loops
from dilocoxd.compress.codec import CHUNK, FOLD, Codec, NotEncodableError, square_sum
from dilocoxd.compress.columns import ColumnInt
from dilocoxd.outer.optimizers import outer_from_name
from tests.unit.compress.cases import VARIANTS, make
from tests.unit.compress.test_exact_bits import LENGTHS, payload_of, vectors

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "dilocoxd" / "compress" / "loops.c"
LABELS = [label for label in VARIANTS if label.split()[0] in {"int8", "int4", "int2", "topk"}]
FACTORS = (1.0, -1.0, 1.0 / 3.0, 0.37)


def flags() -> list[str]:
    """Those that the package is built with."""
    (module,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    return [str(flag) for flag in module["extra-compile-args"]]


def built(folder: Path, *more: str) -> Path:
    path = folder / f"_loops{EXTENSION_SUFFIXES[0]}"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-shared", "-fPIC", *flags(), *more, "-o", path, SOURCE, "-lm"], check=True)
    return path


@pytest.fixture(scope="module", params=["as installed", "not optimised", "one width"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> loops.Loops:
    """Of one source; the second has next to no vectors, the third those of every processor of this kind."""
    if request.param == "as installed":
        assert loops.found, "the package was built without a C compiler; install one and run make"
        return loops.found
    more = {"not optimised": ("-Og", "-DWIDE="), "one width": ("-DWIDE=",)}[request.param]
    return loops.Loops(built(tmp_path_factory.mktemp("loops"), *more))


def bits(values: Tensor) -> Tensor:
    return values.view(torch.int32)


def results(codec: Codec, values: Tensor) -> list[Tensor]:
    """All that a codec makes of values, and of their payload."""
    payload, numel = payload_of(codec, values), values.numel()
    source = codec.checked_payload(payload, numel)
    found = [source, torch.full((numel,), float("nan"))]
    codec.decode(payload, found[1])
    for factor in FACTORS:
        target = values.flip(0).contiguous()
        for start, stop in codec.chunks(numel):
            codec.add_chunk_(source, start, numel, target[start:stop], factor)
        found.append(target)
    squares = [codec.square_sum_chunk(source, start, numel, stop - start) for start, stop in codec.chunks(numel)]
    return [*found, torch.tensor(squares, dtype=torch.float64)]


@pytest.mark.parametrize("label", LABELS)
def test_every_bit_is_that_of_torch(label: str, library: loops.Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = make(label)
    for numel in (*LENGTHS, codec.chunk + 4099):
        for index, values in enumerate(vectors(numel, seed=numel)[:: 1 if numel < 5000 else 3]):
            monkeypatch.setattr(loops, "found", library)
            ours = results(codec, values)
            monkeypatch.setattr(loops, "found", None)
            for one, other in zip(ours, results(codec, values), strict=True):
                assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), (numel, index)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [16, 128, 100])
def test_every_bit_of_columns_is_that_of_torch(
    bits: Literal[4, 8], block: int, library: loops.Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    for length, count in ((1, 1), (1, 5), (2, 3), (3, 2), (31, 4), (32, 1), (129, 5), (257, 3), (CHUNK // 2 - 77, 3)):
        codec = ColumnInt(bits, block, length, spread=9)
        for index, values in enumerate(vectors(count * length, seed=length)[:: 1 if length < 5000 else 12]):
            monkeypatch.setattr(loops, "found", library)
            ours = results(codec, values)
            monkeypatch.setattr(loops, "found", None)
            for one, other in zip(ours, results(codec, values), strict=True):
                assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), (length, count, index)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), 2.0**65])
def test_a_column_with_a_bad_value_is_not_encodable(bits: Literal[4, 8], bad: float, library: loops.Loops) -> None:
    assert library
    for place in (0, 299, 300, 899):
        values = torch.linspace(-1.0, 1.0, 900)
        values[place] = bad
        with pytest.raises(NotEncodableError):
            payload_of(ColumnInt(bits, 128, 300, spread=30), values)


def test_wide_numbers_are_rounded_once_as_torch_does(library: loops.Loops) -> None:
    edges = torch.tensor([0.0, -0.0, 1 + 2.0**-24, 1 + 2.0**-24 + 2.0**-50, 2.0**-149, 2.0**-150, 2.0**130, -(2.0**64)])
    for numel in (1, 8, 1003):
        generator = torch.Generator().manual_seed(numel)
        wide = torch.randn(numel, dtype=torch.float64, generator=generator).pow(9)
        wide[: min(8, numel)] = edges[:numel]
        out = torch.full((numel,), float("nan"))
        library.narrow(wide, out)
        assert torch.equal(bits(out), bits(wide.float()))


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 2.0**65, -(2.0**65)])
def test_one_bad_value_anywhere_is_not_encodable(label: str, bad: float, library: loops.Loops) -> None:
    assert library
    for numel, place in ((1, 0), (301, 150), (4096, 4095), (9001, 9000)):
        values = torch.linspace(-1.0, 1.0, numel)
        values[place] = bad
        with pytest.raises(NotEncodableError):
            payload_of(make(label), values)


@pytest.mark.parametrize("numel", [0, 1, 2, 3, 5, 1000, FOLD - 1, FOLD, FOLD + 1, 3 * FOLD + 7])
def test_squares_are_added_in_the_order_of_torch(
    numel: int, library: loops.Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    for values in vectors(numel, seed=numel)[:4] if numel else [torch.empty(0)]:
        monkeypatch.setattr(loops, "found", library)
        ours = square_sum(values)
        monkeypatch.setattr(loops, "found", None)
        assert ours == square_sum(values)


def test_the_outer_step_is_that_of_torch(library: loops.Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = outer_from_name("nesterov", 0.7, 0.9)
    for numel in LENGTHS:
        for g in vectors(numel, seed=numel):
            states = []
            for way in (library, None):
                monkeypatch.setattr(loops, "found", way)
                x, m = torch.linspace(-3.0, 3.0, numel), torch.linspace(1e-3, -2e-3, numel)
                for step in range(3):
                    optimizer.step_(x, [m], g, step)
                states.append((x, m))
            assert all(torch.equal(bits(one), bits(other)) for one, other in zip(*states, strict=True)), numel


def test_lengths_that_do_not_fit_are_refused_before_c_sees_them() -> None:
    library = loops.found
    assert library
    values, bytes_of = torch.zeros(256), lambda count: torch.zeros(count, dtype=torch.uint8)
    assert library.encode(values, 4, 128, "bf16", bytes_of(4), bytes_of(128))
    for block, scales, codes in (
        (100, 6, 128),
        (128, 3, 128),
        (128, 4, 127),
        (128, 4, 129),
        (8192, 2, 128),
        (0, 4, 128),
    ):
        with pytest.raises(ValueError, match=r"must be|do not fill"):
            library.encode(values, 4, block, "bf16", bytes_of(scales), bytes_of(codes))
        with pytest.raises(ValueError, match=r"must be|do not fill"):
            library.decode((bytes_of(scales), bytes_of(codes)), 4, block, "bf16", values, None)
    for wrong in (values.double(), values.view(16, 16).t()):
        with pytest.raises(ValueError, match="must be"):
            library.encode(wrong, 4, 128, "bf16", bytes_of(4), bytes_of(128))
    with pytest.raises(ValueError, match=r"must be|do not fill"):
        library.square_sums(bytes_of(127), 4, 128, 256)
    with pytest.raises(ValueError, match="room"):
        library.folded_squares(values, torch.zeros(127, dtype=torch.float64))
    with pytest.raises(ValueError, match="groups"):
        library.largest_places(torch.zeros(1, 4096), 3000, 4096)
    columns = values.view(2, 128)
    assert library.encode_columns(columns, 4, 100, bytes_of(8), bytes_of(128))
    for width, block, scales, codes in (
        (4, 100, 7, 128),
        (4, 100, 8, 127),
        (8, 100, 8, 128),
        (2, 100, 8, 64),
        (4, 0, 8, 128),
    ):
        with pytest.raises(ValueError, match=r"must be|columns of"):
            library.encode_columns(columns, width, block, bytes_of(scales), bytes_of(codes))
        with pytest.raises(ValueError, match=r"must be|columns of"):
            library.decode_columns((bytes_of(scales), bytes_of(codes)), width, block, columns)
    with pytest.raises(ValueError, match="must be"):
        library.narrow(values, values)
    with pytest.raises(ValueError, match="must be"):
        library.nesterov(values, torch.zeros(255), values, 0.7, 0.9)


def test_without_a_library_of_this_machine_there_is_none(tmp_path: Path) -> None:
    assert loops.found_in(tmp_path) is None
    (tmp_path / f"_loops{EXTENSION_SUFFIXES[0]}").write_bytes(b"of another machine")
    assert loops.found_in(tmp_path) is None


@pytest.mark.parametrize("flag", ["-ffast-math"])
def test_a_build_that_may_reorder_is_none(flag: str, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        built(tmp_path, flag)
