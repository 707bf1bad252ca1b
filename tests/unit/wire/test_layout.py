"""The canonical layout: the same elements in the same segment everywhere, blocks unmixed, cuts aligned."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from dilocoxd.errors import ConfigError
from dilocoxd.wire.layout import CUT_MULTIPLE, Layout, ParamSpec, group_key, make_layout


def llama_params(num_layers: int, dim: int = 96, vocab: int = 512) -> list[ParamSpec]:
    params = [ParamSpec("model.embed_tokens.weight", (vocab, dim))]
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}."
        params += [ParamSpec(prefix + "self_attn.qkv.weight", (3 * dim, dim))]
        params += [
            ParamSpec(prefix + "mlp.up.weight", (4 * dim, dim)),
            ParamSpec(prefix + "norm.weight", (dim,)),
        ]
    return [*params, ParamSpec("model.norm.weight", (dim,)), ParamSpec("lm_head.weight", (vocab, dim))]


def test_segments_cover_the_vector_without_gap_or_overlap() -> None:
    layout = make_layout(llama_params(3), CUT_MULTIPLE * 5)
    assert layout.segments[0].start == 0
    assert layout.segments[-1].stop == layout.numel
    for before, after in zip(layout.segments, layout.segments[1:], strict=False):
        assert before.stop == after.start
        assert after.index == before.index + 1


def test_no_segment_mixes_two_blocks_or_a_block_with_the_embedding() -> None:
    layout = make_layout(llama_params(4), CUT_MULTIPLE * 1000)
    for segment in layout.segments:
        assert len({group_key(piece.name) for piece in layout.pieces(segment)}) == 1
    assert len(layout.segments) == 4 + 3


@given(
    numels=st.lists(st.integers(1, 30_000), min_size=1, max_size=8),
    blocks=st.lists(st.integers(0, 2), min_size=8, max_size=8),
    limit=st.integers(1, 6),
)
def test_cuts_inside_a_group_fall_on_multiples_of_4096(numels: list[int], blocks: list[int], limit: int) -> None:
    named = enumerate(zip(numels, blocks, strict=False))
    params = [ParamSpec(f"layers.{block}.p{i}", (n,)) for i, (n, block) in named]
    layout = make_layout(params, limit * CUT_MULTIPLE)
    group_start = 0
    previous = ""
    for segment in layout.segments:
        pieces = layout.pieces(segment)
        assert sum(piece.numel for piece in pieces) == segment.numel <= limit * CUT_MULTIPLE
        key = group_key(pieces[0].name)
        if key != previous:
            group_start, previous = segment.start, key
        assert (segment.start - group_start) % CUT_MULTIPLE == 0
    assert sum(segment.numel for segment in layout.segments) == layout.numel == sum(numels)


def test_two_pipeline_splits_own_the_same_elements() -> None:
    layout = make_layout(llama_params(4), CUT_MULTIPLE * 4)
    names = [param.name for param in layout.params]
    whole = layout.slices(reversed(names))
    assert whole == [(0, layout.numel)]
    halves = layout.slices(names[:7]) + layout.slices(names[7:])
    assert halves == [(0, layout.span(names[6]).stop), (layout.span(names[7]).start, layout.numel)]
    split_stage = layout.slices([names[0], names[2], names[3]])
    assert split_stage == [
        (0, layout.span(names[0]).stop),
        (layout.span(names[2]).start, layout.span(names[3]).stop),
    ]


def test_group_key_knows_the_usual_names() -> None:
    assert group_key("layers.3.attn.weight") == "layers.3"
    assert group_key("model.layers.11.mlp.experts.0.weight") == "model.layers.11"
    assert group_key("transformer.h.2.ln_1.bias") == "transformer.h.2"
    assert group_key("model.embed_tokens.weight") == "model.embed_tokens"
    assert group_key("lm_head.weight") == "lm_head"
    assert group_key("temperature") == "temperature"


@pytest.mark.parametrize(
    ("params", "limit", "words"),
    [
        ([], CUT_MULTIPLE, "no parameters"),
        ([ParamSpec("a", (2,)), ParamSpec("a", (2,))], CUT_MULTIPLE, "twice"),
        ([ParamSpec("a", (2, 0))], CUT_MULTIPLE, "at least 1"),
        ([ParamSpec("a", (2,))], 5000, "multiple of 4096"),
        ([ParamSpec("a", (2,))], 0, "multiple of 4096"),
    ],
)
def test_bad_layouts_are_refused_with_a_sentence(params: list[ParamSpec], limit: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_layout(params, limit)


def test_unknown_and_repeated_stage_names_are_refused() -> None:
    layout: Layout = make_layout([ParamSpec("a.w", (4,)), ParamSpec("b.w", ())], CUT_MULTIPLE)
    assert layout.numel == 5
    with pytest.raises(ConfigError, match="not in the manifest"):
        layout.slices(["c.w"])
    with pytest.raises(ConfigError, match="named twice"):
        layout.slices(["a.w", "a.w"])
