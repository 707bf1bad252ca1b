"""Top-k and random mask: what is sent, by hand; positions agreed without being sent; feedback delivers the rest."""

from __future__ import annotations

import pytest
import torch

from dilocoxd.compress.codec import Codec
from dilocoxd.compress.mask import RandomMask
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.transform import NoTransform, Transform
from dilocoxd.errors import ConfigError, WireError
from dilocoxd.outer.feedback import ErrorFeedback
from dilocoxd.outer.optimizers import outer_from_name
from dilocoxd.wire.layout import Layout, ParamSpec, make_layout
from tests.reference.engine import Engine, Recipe


def layout_of(numel: int) -> Layout:
    return make_layout([ParamSpec("w", (numel,))], 8192)


def encoded(codec: Codec, values: torch.Tensor) -> bytearray:
    payload = bytearray(codec.payload_bytes(values.numel()))
    codec.encode(values, payload)
    return payload


def test_topk_layout_by_hand() -> None:
    codec = codec_from_name("topk", k=2)
    values = torch.zeros(4096)
    values[0x123], values[0xABC] = -1.0, 4.0
    payload = encoded(codec, values)
    low, high = b"\x80\x3f", b"\x80\x40"
    assert payload == bytes([0x23, 0xC1, 0xAB]) + low + high + bytes([0b10_01])
    decoded = torch.empty(4096)
    codec.decode(payload, decoded)
    assert torch.equal(decoded, values)


def test_topk_sends_the_largest_and_all_of_them_is_the_identity() -> None:
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(1))
    decoded = torch.empty(10_000)
    codec_from_name("topk", k=4096, values="fp32").decode(
        encoded(codec_from_name("topk", k=4096, values="fp32"), values), decoded
    )
    assert torch.equal(decoded, values)
    codec = codec_from_name("topk", k=40, values="fp32")
    codec.decode(encoded(codec, values), decoded)
    for start in (0, 4096):
        sent = decoded[start : start + 4096] != 0
        chunk = values[start : start + 4096].abs()
        assert int(sent.sum()) == 40
        assert float(chunk[sent].amin()) >= float(chunk[~sent].amax())


def test_repeated_or_unsorted_positions_are_refused() -> None:
    codec = codec_from_name("topk", k=2)
    payload = encoded(codec, torch.ones(4096))
    for positions in (bytes([5, 0x50, 0]), bytes([9, 0x50, 0])):
        payload[:3] = positions
        with pytest.raises(WireError, match="ascending"):
            codec.decode(payload, torch.empty(4096))


def test_bytes_per_parameter() -> None:
    numel = 4096 * 100
    assert codec_from_name("topk").payload_bytes(numel) * 8 / numel == pytest.approx(0.2266, abs=1e-4)
    assert codec_from_name("int2").payload_bytes(numel) * 8 / numel == 2.125
    assert codec_from_name("e3m0").payload_bytes(numel) * 8 / numel == 4.0625


def test_mask_positions_are_known_everywhere_and_change_every_round() -> None:
    layout = layout_of(10_001)
    mask = RandomMask(layout, codec_from_name("fp32"), 10)
    segment = layout.segments[1]
    seen = []
    for round_index in (0, 1, 0):
        mask.tune(round_index, 0)
        positions = mask.positions(segment)
        groups = torch.arange(mask.vector_numel(0, segment))
        assert bool((positions // 10 == groups).all())
        assert int(positions.amax()) < segment.numel
        seen.append(positions)
    assert torch.equal(seen[0], seen[2])
    assert float((seen[0] == seen[1]).float().mean()) < 0.3
    counts = torch.zeros(10)
    for round_index in range(200):
        mask.tune(round_index, 0)
        counts += torch.bincount(mask.positions(layout.segments[0]) % 10, minlength=10)
    assert float(counts.amin() / counts.amax()) > 0.9
    with pytest.raises(ConfigError, match="keep_one_in"):
        RandomMask(layout, codec_from_name("fp32"), 0)


@pytest.mark.parametrize("kind", ["topk", "mask"])
def test_sparse_with_feedback_delivers_everything_in_the_end(kind: str) -> None:
    layout = layout_of(9000)
    transform: Transform = (
        NoTransform(layout, codec_from_name("topk", k=512))
        if kind == "topk"
        else RandomMask(layout, codec_from_name("int8"), 8)
    )
    update = torch.randn(9000, generator=torch.Generator().manual_seed(2))
    missing = {}
    for mode in ("local", "none"):
        recipe = Recipe(transform, outer_from_name("sgd", 1.0), ErrorFeedback(mode), mode == "local")  # type: ignore[arg-type]
        engine = Engine.start(recipe, torch.zeros(9000), ("a", "b"))
        for step in range(80):
            if isinstance(transform, RandomMask):
                transform.tune(step, 0)
            engine.commit(engine.offer(dict.fromkeys(("a", "b"), update)))
        missing[mode] = float((engine.anchor + 80 * update).norm() / (80 * update).norm())
    assert missing["local"] < 0.35
    assert missing["none"] > 2 * missing["local"]
