"""Error feedback: r = d - own gives d back exactly, and nothing is lost when a contribution is excluded."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from dilocoxd.compress.codec import CHUNK, Codec
from dilocoxd.compress.transform import add_decoded_, subtract_decoded_
from dilocoxd.outer.feedback import ErrorFeedback
from tests.unit.compress.cases import VARIANTS, make

ALL = pytest.mark.parametrize("label", list(VARIANTS))
POW2 = pytest.mark.parametrize("label", [label for label in VARIANTS if "pow2" in label])


def encoded(codec: Codec, d: Tensor) -> bytearray:
    payload = bytearray(codec.payload_bytes(d.numel()))
    codec.encode(d, payload)
    return payload


EXACT = [label for label in VARIANTS if label.split()[0] not in {"int2", "int8bins"}]
"""Nearest rounding, or values sent as they are. int2 and int8bins decode to levels that can be more than twice d."""


@pytest.mark.parametrize("label", EXACT)
def test_excluded_contribution_comes_back_bit_for_bit(label: str) -> None:
    codec = make(label)
    d = torch.randn(CHUNK + 3000, generator=torch.Generator().manual_seed(1)) * 1e-3
    payload = encoded(codec, d)
    e = d.clone()
    subtract_decoded_(codec, payload, e)
    own = torch.empty_like(d)
    codec.decode(payload, own)
    assert torch.equal(e.double(), d.double() - own.double()), "the residual itself must be exact"
    add_decoded_(codec, payload, e)
    assert torch.equal(e, d)


@POW2
@settings(max_examples=20, deadline=None)
@given(values=st.lists(st.floats(-(2.0**60), 2.0**60, width=32), min_size=1, max_size=64))
def test_residual_is_exact_for_any_values_with_power_of_two_scales(label: str, values: list[float]) -> None:
    codec = make(label)
    d = torch.tensor(values, dtype=torch.float32)
    payload = encoded(codec, d)
    e = d.clone()
    subtract_decoded_(codec, payload, e)
    add_decoded_(codec, payload, e)
    assert torch.equal(e, d)


@ALL
@settings(max_examples=20, deadline=None)
@given(values=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=64))
def test_residual_is_exact_up_to_one_rounding_for_any_values(label: str, values: list[float]) -> None:
    codec = make(label)
    d = torch.tensor(values, dtype=torch.float32)
    payload = encoded(codec, d)
    e = d.clone()
    subtract_decoded_(codec, payload, e)
    rounding = torch.maximum(e.abs(), d.abs()) * 2.0**-23
    add_decoded_(codec, payload, e)
    assert bool(((e.double() - d.double()).abs() <= rounding).all())


def test_modes() -> None:
    u, own, delta = torch.tensor([4.0, 2.0]), torch.tensor([3.0, 2.0]), torch.tensor([1.0, 1.0])
    for mode, expected in (("local", [1.0, 0.0]), ("none", [0.0, 0.0]), ("paper", [3.0, 1.0])):
        feedback = ErrorFeedback(mode)  # type: ignore[arg-type]
        e = torch.zeros(2)
        feedback.form_(e, u)
        e.sub_(own)
        feedback.include_(e, own, delta)
        assert e.tolist() == expected
    with pytest.raises(ValueError, match="own and delta"):
        ErrorFeedback("paper").include_(torch.zeros(2))


def test_beta_decays_what_was_kept() -> None:
    e = torch.tensor([8.0])
    ErrorFeedback("local", beta=0.5).form_(e, torch.tensor([1.0]))
    assert e.tolist() == [5.0]
