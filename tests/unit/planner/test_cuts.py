"""What a site weighs by how it cuts the model: shards, tensors, positions, layers, microbatches in flight."""

from dataclasses import replace

import pytest

from dilocoxd.config.footprint.counts import counted
from dilocoxd.config.footprint.estimate import LOGITS_BYTES, PARAMETER_BYTES, VALUE_BYTES, _in_flight, estimate
from dilocoxd.config.footprint.shape import SiteShape
from dilocoxd.planner.footprint import footprint
from tests.unit.planner.test_plan import run_of


def test_shards_divide_what_a_trainer_holds_and_replicas_do_not() -> None:
    manifest = run_of("small", inner={"optimizer": "adamw", "batch_sequences": 16, "microbatches": 4})
    one, shards, copies = (
        footprint(manifest, SiteShape(1, 1, 2, shard=shard, replicate=copies))
        for shard, copies in ((1, 1), (4, 1), (1, 4))
    )
    # Both compute a quarter of the batch and gather alike; shards hold a quarter of 24 bytes a parameter.
    assert copies.trainer_bytes - shards.trainer_bytes == pytest.approx(18 * one.parameters, rel=1e-6)
    assert copies.node_bytes > shards.node_bytes


def test_tensor_divides_matrices_and_what_passes_through_them() -> None:
    manifest = run_of("small")
    one, two, both = (
        footprint(manifest, SiteShape(1, 1, 2, tensor=tensor, shard=shard))
        for tensor, shard in ((1, 1), (2, 1), (2, 2))
    )
    model, tokens = manifest.model, manifest.inner.batch_sequences * manifest.model.seq_len
    kv = model.hidden_size * model.num_kv_heads // model.num_heads
    of_block = model.hidden_size * (2 * model.hidden_size + 2 * kv + 3 * model.intermediate_size)
    of_ends = 2 * model.vocab_size * model.hidden_size
    activations = (
        VALUE_BYTES[manifest.inner.dtype] * tokens * (2 * model.hidden_size + 2 * kv + 4 * model.intermediate_size)
    )
    matrices = PARAMETER_BYTES[manifest.inner.optimizer] * (model.num_layers * of_block + of_ends)
    halved = (matrices + model.num_layers * activations + LOGITS_BYTES * tokens * model.vocab_size) / 2
    assert one.trainer_bytes - two.trainer_bytes == pytest.approx(halved, rel=1e-6)
    assert two.node_bytes > one.node_bytes, "norms and what goes into them are there twice"
    assert both.trainer_bytes < two.trainer_bytes
    again = footprint(manifest, SiteShape(1, 1, 2, is_checkpointed=True))
    assert again.trainer_bytes < one.trainer_bytes


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_positions_divide_what_norms_keep_but_for_what_goes_into_matrices(is_checkpointed: bool) -> None:
    manifest = run_of("small")
    whole, parts = (
        footprint(manifest, SiteShape(1, 1, 2, tensor=2, is_checkpointed=is_checkpointed, is_sequence_cut=is_cut))
        for is_cut in (False, True)
    )
    model, tokens = manifest.model, manifest.inner.batch_sequences * manifest.model.seq_len
    of_norms = VALUE_BYTES[manifest.inner.dtype] * 4 * model.hidden_size
    inputs = 4 * model.hidden_size * model.num_layers
    kept = inputs + of_norms if is_checkpointed else model.num_layers * of_norms
    assert whole.trainer_bytes - parts.trainer_bytes == pytest.approx(tokens * kept / 2, rel=1e-6)


def test_logits_count_for_as_many_positions_as_have_them() -> None:
    manifest = run_of("small")
    whole, chunked, large = (
        footprint(manifest, SiteShape(1, 1, 2, loss_chunk_tokens=chunk)).trainer_bytes for chunk in (0, 100, 1 << 24)
    )
    tokens = manifest.inner.batch_sequences * manifest.model.seq_len
    assert whole - chunked == 12 * manifest.model.vocab_size * (tokens - 100)
    assert large == whole


def test_a_stage_of_more_layers_weighs_more() -> None:
    manifest = run_of("small", model={"num_layers": 8})
    even, uneven = (SiteShape(2, 4, 2, layers=layers) for layers in ((4, 4), (7, 1)))
    for weighed in (footprint, lambda run, shape: estimate(run, shape, counted(run, shape))):
        assert weighed(manifest, uneven).trainer_bytes > 1.3 * weighed(manifest, even).trainer_bytes


def test_a_schedule_keeps_the_activations_of_its_microbatches_in_flight() -> None:
    """gpipe keeps all eight; 1f1b as many as there are processes behind; interleaved1f1b more than that."""
    cut = SiteShape(2, 8, 2)
    manifest = run_of("small", inner={"batch_sequences": 16, "microbatches": 8})
    gpipe, one_by_one = (footprint(manifest, replace(cut, schedule=name)) for name in ("gpipe", "1f1b"))
    assert gpipe.trainer_bytes > one_by_one.trainer_bytes
    assert [_in_flight(replace(cut, schedule="gpipe"), 8, index) for index in (0, 1)] == [8, 8]
    assert [_in_flight(cut, 8, index) for index in (0, 1)] == [2, 1]
    # Of two slices each the first process has done 2 + 2 + 1 forward passes when its first backward pass comes.
    deep = replace(cut, schedule="interleaved1f1b", slices_per_process=2)
    assert [_in_flight(deep, 8, index) for index in range(4)] == [3, 2, 3, 2]
    # Counted in the orders of torch 2.13: forward passes less those whose weights have their gradients, at most.
    vee = replace(cut, schedule="zbvzerobubble", stages=3, slices_per_process=2)
    assert [_in_flight(vee, 12, index) for index in range(6)] == [6, 5, 4, 3, 2, 1]
    apart = replace(vee, schedule="interleavedzerobubble")
    assert sum(_in_flight(apart, 12, index) for index in (0, 3)) == 6
