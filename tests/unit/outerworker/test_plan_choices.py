"""Every strategy that a manifest can name becomes a plan, and contradictions are refused with a sentence."""

from __future__ import annotations

from typing import get_args

import pytest

from dilocoxd.compress.registry import codec_names
from dilocoxd.config.agreement import OuterSection, StrategySection
from dilocoxd.errors import ConfigError
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.store.snapshots import chunks_max
from dilocoxd.wire.local.outer_parts import SnapshotHashed
from dilocoxd.wire.local.registry import LOCAL_MESSAGE_BYTES_MAX, LOCAL_MESSAGES
from dilocoxd.wire.placement import PARTS_MAX
from tests.harness.outer_worker.daemon_end import tiny_manifest

CODECS = get_args(StrategySection.model_fields["codec"].annotation)
OPTIMIZERS = get_args(OuterSection.model_fields["optimizer"].annotation)


def test_manifests_name_exactly_the_codecs_that_exist() -> None:
    assert set(CODECS) == set(codec_names())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("lowrank_r", [0, 2])
def test_every_codec_and_transform_makes_a_plan(codec: str, lowrank_r: int) -> None:
    transform = "lowrank" if lowrank_r else "identity"
    plan = make_plan(tiny_manifest(strategy={"codec": codec, "transform": transform, "lowrank_r": lowrank_r}))
    assert plan.num_passes == (3 if lowrank_r else 1)
    assert all(size >= 1 for row in plan.payload_bytes_at(lowrank_r) for size in row)
    assert plan.payload_total == sum(map(sum, plan.transform.payload_table())) + len(plan.segments) * plan.record_bytes
    assert plan.record_bytes == 2 * (1 + plan.manifest.round.peers_max)


def test_topk_takes_its_number_from_the_manifest() -> None:
    few, many = (make_plan(tiny_manifest(strategy={"codec": "topk", "topk": k})).payload_total for k in (8, 512))
    assert many > 30 * few


@pytest.mark.parametrize(
    ("section", "fields"),
    [
        ("strategy", {"transform": "lowrank"}),
        ("strategy", {"lowrank_r": 4}),
        ("strategy", {"codec": "topk", "topk": 7}),
        ("strategy", {"transform": "mask"}),
        ("strategy", {"mask_keep_one_in": 4}),
        ("strategy", {"fragments": 3}),
        ("strategy", {"mix_alpha": 0.1}),
        ("strategy", {"delay": "streaming", "error_feedback": "none"}),
        ("strategy", {"delay": "streaming", "fragments": 3}),
        (
            "strategy",
            {
                "delay": "streaming",
                "fragments": 3,
                "error_feedback": "none",
                "transform": "mask",
                "mask_keep_one_in": 4,
            },
        ),
        ("schedule", {"kind": "adaptive"}),
        ("schedule", {"window": 3}),
        ("schedule", {"kind": "qsr", "inner_steps_min": 11}),
        ("schedule", {"kind": "qsr", "inner_steps_max": 9}),
        ("inner", {"muon_momentum": 0.9}),
    ],
)
def test_contradictions_are_config_errors(section: str, fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        tiny_manifest(**{section: fields})


def test_every_round_of_streaming_costs_an_equal_part_of_the_bytes() -> None:
    fields = {"delay": "streaming", "codec": "e3m0", "error_feedback": "none"}
    unclipped = {"norm_clip": False}
    one, four = (make_plan(tiny_manifest(strategy={**fields, "fragments": n}, aggregation=unclipped)) for n in (1, 4))
    assert four.payload_total == pytest.approx(one.payload_total / 4, rel=0.02)
    assert (one.age_expected, four.age_expected) == (0, 3), "in between its fragment's anchor does not move"


def test_eager_needs_a_linear_outer_optimizer() -> None:
    eager = {"delay": "eager", "codec": "int4"}
    assert make_plan(tiny_manifest(strategy=eager)).age_expected == 1
    with pytest.raises(ConfigError, match="linear"):
        tiny_manifest(strategy=eager, outer={"optimizer": "adam", "lr": 0.1, "momentum": 0.9})


def test_adaptive_runs_know_the_payloads_of_every_low_rank_they_may_use() -> None:
    strategy = {"codec": "int4", "transform": "lowrank", "lowrank_r": 8}
    plan = make_plan(tiny_manifest(strategy=strategy, schedule={"kind": "adaptive", "lowrank_r_min": 3}))
    assert sorted(plan.payload_tables) == [3, 4, 5, 6, 7, 8]
    totals = [sum(map(sum, table)) for table in plan.payload_tables.values()]
    assert totals == sorted(set(totals))
    assert plan.payload_total == totals[-1]
    assert [each.lowrank_r for each in plan.described().payloads] == [3, 4, 5, 6, 7, 8]
    assert plan.has_memory
    assert not make_plan(tiny_manifest(aggregation={"norm_clip": False})).has_memory


def test_coarse_codecs_without_feedback_are_warned_about() -> None:
    for strategy in ({"codec": "topk"}, {"codec": "int2"}, {"transform": "lowrank", "lowrank_r": 2}):
        manifest = tiny_manifest(strategy={**strategy, "error_feedback": "none"})
        assert any("error_feedback" in text for text in manifest.warnings())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_outer_optimizer_makes_a_plan(name: str) -> None:
    momentum = 0.0 if name == "sgd" else 0.9
    plan = make_plan(tiny_manifest(outer={"optimizer": name, "lr": 0.1, "momentum": momentum}))
    assert plan.num_slots == {"sgd": 0, "adam": 2}.get(name, 1)


def test_state_whose_snapshots_nobody_could_read_is_refused() -> None:
    """Some trillions of bytes; 107B parameters have a fifth of them (tests/unit/planner)."""
    sizes = {"hidden_size": 16384, "num_heads": 128, "num_kv_heads": 128, "intermediate_size": 53248}
    strategy = {"segment_elements_max": 1 << 26, "codec": "int4"}
    with pytest.raises(ConfigError, match="make a snapshot of 4784 GB, but it may have 4151 GB"):
        make_plan(tiny_manifest(model=sizes | {"num_layers": 162}, strategy=strategy))


@pytest.mark.parametrize("num_parts", [2, 3, PARTS_MAX])
def test_hashes_of_a_part_fit_its_message_for_every_state_that_a_snapshot_may_have(num_parts: int) -> None:
    largest = chunks_max(0)
    for files in ((largest,), (largest // 2, largest // 2, 0), (largest // 3, largest // 3, largest // 3)):
        of_part = tuple(bytes(32 * -(-chunks // num_parts)) for chunks in files)
        message = SnapshotHashed(2**40, of_part, ((0, 2**42),) * len(of_part))
        data = LOCAL_MESSAGES.encode(message)
        assert len(data) <= LOCAL_MESSAGE_BYTES_MAX and LOCAL_MESSAGES.decode(data) == message
