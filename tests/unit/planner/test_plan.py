"""A plan of real presets: the payload is that of the workers, advice is better, what cannot work is refused."""

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dilocoxd.cli.main import cli
from dilocoxd.config.footprint.counts import counted
from dilocoxd.config.footprint.estimate import (
    DAEMON_BYTES,
    PROCESS_BYTES,
    Estimate,
    site_estimate,
)
from dilocoxd.config.footprint.shape import SiteShape, shape_of
from dilocoxd.config.hugging_face import canonical_config
from dilocoxd.config.loading import validated
from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.config.presets import preset_tables, strategy_names
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError
from dilocoxd.machines.exchange.cost import Link
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.planner.advice import Advice, better_settings
from dilocoxd.planner.footprint import Footprint, footprint
from dilocoxd.planner.plan import Compute, Deployment, plan_run
from dilocoxd.planner.refusals import Machine, refusals
from dilocoxd.planner.report import advice_lines
from dilocoxd.wire.limits import RESULT_HASHES_MAX, SEGMENTS_MAX
from dilocoxd.wire.messages import PEER_MESSAGES, ResultHashes


def run_of(preset: str, **sections: dict[str, Any]) -> Manifest:
    tables = preset_tables(preset)
    for section, fields in sections.items():
        tables[section] = {**tables.get(section, {}), **fields}
    return manifest_from_tables(tables, source=preset)


def pretrained() -> dict[str, Any]:
    """The model section of one of the sizes of `small`, with a config.json."""
    section = preset_tables("small")["model"]
    names = {
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
    }
    sizes = {names.get(name, name): value for name, value in section.items() if name != "seq_len"}
    return {"kind": "hf", "config": canonical_config({"model_type": "llama", "tie_word_embeddings": False, **sizes})}


def place(bit_per_s: float = 1e8, step_s: float = 0.5, sites: int = 4) -> Deployment:
    return Deployment(Link(bit_per_s, bit_per_s, 0.08), SiteShape(1, 0, sites), Compute(1e12, step_s))


@pytest.mark.parametrize("preset", ["tiny", "demo", "small", "demo:dilocox", "small:sparseloco", "demo:streaming"])
def test_payload_is_that_of_the_outer_worker(preset: str) -> None:
    manifest = run_of(preset)
    plan, weight = make_plan(manifest), footprint(manifest, SiteShape(1, 0, 4))
    assert weight.payload_bytes == plan.payload_total
    assert weight.parameters == plan.layout.numel


def test_memory_of_the_outer_worker_is_what_was_measured() -> None:
    """docs/benchmarks.md: 4.67 and 4.81 copies of the parameters with two sites, without the process itself."""
    weight = footprint(run_of("small", strategy={"codec": "int4"}), SiteShape(1, 0, 2, leaves_out=False))
    empty = footprint(run_of("tiny"), SiteShape(1, 0, 2, leaves_out=False)).outer_worker_bytes
    assert (weight.outer_worker_bytes - empty) / (4 * weight.parameters) == pytest.approx(4.75, abs=0.1)
    looks = footprint(run_of("small", strategy={"codec": "int4"}), SiteShape(1, 0, 2))
    measured = 5.27  # tests/bench/outer_memory.py, 10M parameters, after the entry that is looked at
    assert (looks.outer_worker_bytes - empty) / (4 * weight.parameters) == pytest.approx(measured, abs=0.1)


def test_what_one_contribution_did_is_held_where_a_site_sums_and_only_where_it_is_measured() -> None:
    """ADR 39: until the next entry is settled, beside all that is held then."""
    evaluates, never = run_of("small"), run_of("small", data={"evaluate_every_rounds": 0})
    gathers = run_of("small", reduction={"reducer": "gather", "verify": "none"})
    for manifest, part in ((evaluates, 1 / 4), (gathers, 1.0), (never, 0.0)):
        on, off = (footprint(manifest, SiteShape(1, 0, 4, leaves_out=is_on)) for is_on in (True, False))
        for name in ("outer_worker_bytes", "copies_bytes", "node_bytes"):
            assert getattr(on, name) - getattr(off, name) == pytest.approx(4 * part * on.parameters, abs=1), name
    for every, is_on in ((8, True), (0, False)):
        site = validated(SiteConfig, {"workers": {"without_one_every": every}}, source="test")
        assert site_estimate(evaluates, site) == site_estimate(evaluates, None) or not is_on
        assert shape_of(evaluates, site).leaves_out is is_on


@pytest.mark.parametrize(
    "preset", ["tiny", *[f"{model}:{name}" for model in ("demo", "small") for name in strategy_names()]]
)
def test_what_is_told_before_torch_is_loaded_is_what_the_plan_says(preset: str) -> None:
    """doctor, start, join and the daemon count by formula, check-config and plan from the plan: only counts differ."""
    manifest = run_of(preset)
    shape = shape_of(manifest, None)
    quick, exact = site_estimate(manifest, None), footprint(manifest, shape)
    assert counted(manifest, shape).parameters == pytest.approx(exact.parameters, rel=0.005)
    assert counted(manifest, shape).payload_bytes == pytest.approx(exact.payload_bytes, rel=0.12)
    for name in Estimate.__dataclass_fields__:
        assert getattr(quick, name) == pytest.approx(getattr(exact, name), rel=0.03), name


def test_every_cut_of_a_site_is_told_alike_by_formula_and_plan() -> None:
    manifest = run_of("small", inner={"batch_sequences": 16, "microbatches": 4})
    cuts: tuple[dict[str, object], ...] = ({"pipeline": 2}, {"shard": 2}, {"replicate": 2}, {"tensor": 2})
    for parallel in (*cuts, {"tensor": 2, "shard": 2, "sequence": True, "activation_checkpointing": "block"}):
        for device in ({}, {"device": "cuda", "backend": "nccl"}):
            site = validated(SiteConfig, {"parallel": {**parallel, **device}}, source="test")
            quick, exact = site_estimate(manifest, site), footprint(manifest, shape_of(manifest, site))
            assert quick.node_bytes == pytest.approx(exact.node_bytes, rel=0.02)


def test_only_the_adapter_is_optimised_and_kept_and_the_model_under_it_is_held_once() -> None:
    whole = run_of("small")
    lora = {"rank": 8, "base_name": "m", "base_files": {"model.safetensors": "ab" * 32}}
    adapter = run_of("small", model=pretrained(), lora=lora)
    quick, of_whole = site_estimate(adapter, None), site_estimate(whole, None)
    numel = counted(whole, shape_of(whole, None)).parameters
    assert quick.copies_bytes == pytest.approx(4 * numel, rel=0.3)
    assert quick.state_bytes < 0.05 * of_whole.state_bytes
    exact = footprint(adapter, shape_of(adapter, None))
    assert quick.node_bytes == pytest.approx(exact.node_bytes, rel=0.05)
    assert quick.state_bytes == pytest.approx(exact.state_bytes, rel=0.05)


def test_one_preset_holds_what_was_measured() -> None:
    """Measured: forward and backward of `small` in pieces of 512 and 1,024 tokens, fp32, one thread, peak of resident
    memory over parameters and gradients."""
    manifest = run_of("small")
    for pieces, measured in ((8, 333e6), (4, 584e6)):
        cpu, gpu = (footprint(manifest, SiteShape(1, pieces, 2, on_gpu=on_gpu)) for on_gpu in (False, True))
        held = cpu.copies_bytes - gpu.copies_bytes
        assert cpu.node_bytes - gpu.node_bytes - held == pytest.approx(measured, rel=0.1)


def test_on_a_gpu_only_the_outer_worker_and_the_processes_are_in_main_memory() -> None:
    manifest = run_of("small")
    weight = footprint(manifest, SiteShape(1, 1, 2, on_gpu=True))
    assert weight.node_bytes == DAEMON_BYTES + weight.outer_worker_bytes + PROCESS_BYTES
    assert weight.trainer_bytes == footprint(manifest, SiteShape(1, 1, 2)).trainer_bytes


def test_stages_share_the_trainers_memory() -> None:
    whole, half = (footprint(run_of("small"), SiteShape(stages, 0, 4)) for stages in (1, 2))
    assert half.trainer_bytes < 0.75 * whole.trainer_bytes
    assert half.node_bytes > whole.node_bytes - whole.trainer_bytes


def test_advice_is_better_and_never_worse() -> None:
    manifest = run_of("demo:dilocox")
    plan = plan_run(manifest, place(step_s=1.0))
    found = better_settings(manifest, place(step_s=1.0), plan)
    assert len(found) == 2
    for one in found:
        gains = one.plan.tokens_per_s / plan.tokens_per_s, plan.loss_gap_percent - one.plan.loss_gap_percent
        assert gains[0] >= 0.995
        assert gains[1] >= -0.05
        assert gains[0] >= 1.02 or gains[1] >= 0.1 or one.plan.bytes_per_hour <= 0.75 * plan.bytes_per_hour
    assert len({one.field for one in found}) == 2


def test_a_site_alone_is_not_advised_to_send_less() -> None:
    """It sends nothing, whatever its settings: `speed -0.0%, loss +0.00 points` was the advice."""
    manifest, alone = run_of("tiny"), place(step_s=1.0, sites=1)
    plan = plan_run(manifest, alone)
    fields = [one.field for one in better_settings(manifest, alone, plan, count=8)]
    assert fields and "strategy.codec" not in fields
    assert all(
        plan.loss_gap_percent - one.plan.loss_gap_percent >= 0.1 for one in better_settings(manifest, alone, plan)
    )


def test_a_change_that_is_rounded_to_nothing_has_no_minus() -> None:
    manifest, here = run_of("tiny"), place(step_s=1.0)
    plan = plan_run(manifest, here)
    slower = replace(plan, tokens_per_s=plan.tokens_per_s * 0.9999, bytes_per_hour=plan.bytes_per_hour * 0.999)
    (said,) = advice_lines([Advice("strategy.inner_steps", "8", "9", slower)], plan)
    assert said == "strategy.inner_steps = 9 (now 8): speed +0.0%, loss +0.00 points, traffic +0%"


def test_what_is_advised_can_be_run() -> None:
    manifest = run_of("small:dilocox")
    for one in better_settings(manifest, place(2e6), plan_run(manifest, place(2e6))):
        section, _, field = one.field.partition(".")
        value = int(one.after) if one.after.isdecimal() else one.after
        plan = plan_run(run_of("small:dilocox", **{section: {field: value}}), place(2e6))
        assert plan == one.plan


def test_low_rank_that_factors_too_little_is_refused_with_the_share() -> None:
    fields = {"transform": "lowrank", "lowrank_r": 256, "segment_elements_max": 65536}
    weight = footprint(run_of("small", strategy=fields), SiteShape(1, 0, 2))
    assert weight.factored_share < 0.5
    (text,) = refusals(run_of("small", strategy=fields), weight, Machine())
    assert f"factors only {weight.factored_share:.0%}" in text
    larger = run_of("small", strategy={**fields, "lowrank_r": 64, "segment_elements_max": 1 << 22})
    assert not list(refusals(larger, footprint(larger, SiteShape(1, 0, 2)), Machine()))


def test_memory_is_refused_only_where_it_is_known_and_too_small() -> None:
    manifest = run_of("small")
    weight = footprint(manifest, SiteShape(1, 0, 2))
    assert not list(refusals(manifest, weight, Machine(weight.node_bytes, 0)))
    (text,) = refusals(manifest, weight, Machine(weight.node_bytes - 1, 0))
    assert "the site needs about 2.2 GiB" in text
    (text,) = refusals(manifest, weight, Machine(1 << 40, weight.trainer_bytes - 1))
    assert "a GPU has" in text


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 pipeline stages do not fit a model of 2 layers"):
        footprint(run_of("tiny"), SiteShape(3, 0, 2))


def large(layers: int, **strategy: Any) -> Manifest:
    """7B for each 32 layers, in segments of 4096 elements unless `strategy` says otherwise."""
    sizes = {"hidden_size": 4096, "num_layers": layers, "num_heads": 32, "num_kv_heads": 8, "intermediate_size": 14336}
    return run_of("tiny", model={**sizes, "vocab_size": 32000}, strategy=strategy)


def test_segments_that_no_message_can_name_are_refused_before_the_first_round() -> None:
    with pytest.raises(ConfigError, match=r"make 110\d+ segments in 1 passes, but .* raise strategy.segment"):
        make_plan(large(32, segment_elements_max=1 << 16))
    assert len(make_plan(large(32, segment_elements_max=1 << 18)).segments) < RESULT_HASHES_MAX


def test_each_pass_counts_for_the_messages() -> None:
    assert len(make_plan(large(32, segment_elements_max=1 << 18)).segments) > RESULT_HASHES_MAX // 3
    with pytest.raises(ConfigError, match="segments in 3 passes"):
        make_plan(large(32, segment_elements_max=1 << 18, transform="lowrank", lowrank_r=8))


def test_the_limit_is_what_the_decoder_takes() -> None:
    fits = ResultHashes(round=2**40, attempt=2**20, hashes=(bytes(32),) * RESULT_HASHES_MAX)
    assert PEER_MESSAGES.decode(PEER_MESSAGES.encode(fits)) == fits
    assert RESULT_HASHES_MAX <= SEGMENTS_MAX


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *arguments], standalone_mode=False, catch_exceptions=False)


def test_command_names_every_part() -> None:
    done = invoke("small", "--link", "100M", "--rtt", "80ms", "--sites", "32", "--gpus", "8xA100")
    names = [line.split()[0] for line in done.output.splitlines()]
    for name in (
        "payload", "exchange", "round", "trainers", "speed", "traffic", "memory", "outer", "disk", "loss", "better"
    ):  # fmt: skip
        assert name in names
    assert "8.5 MB" in done.output
    assert "nobody has shown that it holds for your model" in done.output


def test_a_site_alone_exchanges_nothing() -> None:
    """Nine times `0 ms` were its exchange, and bytes were saved of none."""
    done = invoke("small", "--link", "100M", "--sites", "1", "--gpus", "8xA100")
    said = {line.split()[0]: line for line in done.output.splitlines()}
    assert said["exchange"].split(maxsplit=1)[1] == "none: a site alone has nobody to exchange with"
    assert said["traffic"].split() == ["traffic", "none"]
    assert "of a site alone" in said["speed"]


def test_command_plans_a_site_of_many_machines() -> None:
    """One file with the cut of site.toml: what a GPU, a node and an outer part have to do."""
    cut = ("pipeline=4", "shard=2", "activation_checkpointing=block")
    settings = [each for one in cut for each in ("--set", f"parallel.{one}")] + ["--set", "workers.outer_parts=4"]
    one, two = (
        invoke("small", "--link", "100M", "--sites", "2", "--gpus", "8xA100", "--nodes", nodes, *settings).output
        for nodes in ("1", "2")
    )
    assert "(each of 8 trainers at most)" in one and "of a core in each round, each of 4" in one
    assert "main memory of one node" in one and "nodes" not in one
    assert "each of 2 nodes" in two and "the head" in two


def test_gpus_are_said_of_a_site_or_of_each_of_its_nodes() -> None:
    """`--gpus 8xA100 --nodes 4` was meant as 32 by who has four machines of eight, and planned as 8."""
    asked = ("small", "--link", "1G", "--sites", "2", "--nodes", "2", "--set", "parallel.pipeline=4")
    whole, each = invoke(*asked, "--gpus", "4xA100").output, invoke(*asked, "--gpus-per-node", "2xa100").output
    assert whole == each
    assert "4 A100: 2 on each of 2 nodes" in " ".join(whole.split())
    alone = invoke("small", "--link", "1G", "--sites", "2", "--gpus", "8xA100").output
    assert alone.startswith("each site") and "8 A100: all on one node" in " ".join(alone.split())


def test_a_computed_step_says_which_processors_it_is_computed_for() -> None:
    """Nobody who names no GPUs sees otherwise that one core is planned, whatever his machine has."""
    asked = ("tiny", "--link", "100M", "--sites", "2")
    for given, who in (
        ((), "1 CPU core"), (("--stages", "2"), "2 CPU cores"), (("--gpus", "8xA100", "--stages", "2"), "2 A100")
    ):  # fmt: skip
        assert f"(computed for {who}; give --step-time)" in invoke(*asked, *given).output
    assert "computed" not in invoke(*asked, "--step-time", "1s").output


def test_command_answers_in_json_and_takes_changes() -> None:
    changes = ("--step-time", "1s", "--set", "strategy.inner_steps=50")
    done = invoke("small", "--link", "1G", "--sites", "2", *changes, "--json")
    found = json.loads(done.output)
    assert found["pace"]["steps"] == 50
    assert found["tokens_per_s"] == pytest.approx(2 * 16 * 256)
    assert found["exchange"]["total_s"] < 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("small", "--link", "quick", "--sites", "2"), "--link 'quick' cannot be read"),
        (("small", "--link", "1G", "--rtt", "80", "--sites", "2"), "--rtt '80' cannot be read"),
        (("huge", "--link", "1G", "--sites", "2"), "there is no preset and no file 'huge'"),
        (("small", "--link", "1G", "--sites", "2", "--set", "api.port=1"), "belongs to site.toml"),
        (("tiny", "--link", "1G", "--sites", "2", "--stages", "9"), "9 pipeline stages do not fit"),
        (("tiny", "--link", "100", "--sites", "3"), "says 100 bit/s; give 1k to 10000G"),
        (("tiny", "--link", "1G", "--rtt", "80s", "--sites", "3"), "--rtt '80s' is out of range"),
        (("tiny", "--link", "1G", "--sites", "3", "--step-time", "0s"), "--step-time '0s' is out of range"),
        (("tiny", "--link", "1G", "--sites", "3", "--step-time", ""), "--step-time '' cannot be read"),
        (("tiny", "--link", "1G", "--sites", "3", "--gpus", ""), "--gpus '' cannot be read"),
        (("tiny", "--link", "1G", "--sites", "3", "--nodes", "9"), "--nodes 9 is more than a site has"),
        (
            ("tiny", "--link", "1G", "--sites", "3", "--gpus", "8xA100", "--gpus-per-node", "8xA100"),
            "--gpus 8xA100 says all GPUs of a site and --gpus-per-node 8xA100 those of one node; give one",
        ),
        (
            ("tiny", "--link", "1G", "--sites", "3", "--gpus", "9xA100", "--nodes", "2"),
            "9 do not divide among them; give --gpus-per-node, say 5xA100",
        ),
        (
            ("tiny", "--link", "1G", "--sites", "3", "--gpus-per-node", "8", "--nodes", "2"),
            "--gpus-per-node '8' cannot be read; write NUMBERxNAME",
        ),
        (
            ("tiny", "--link", "1G", "--sites", "3", "--gpus-per-node", "40000xA100", "--nodes", "2"),
            "at most 65536 in a site",
        ),
        (
            ("small", "--link", "1G", "--sites", "3", "--stages", "2", "--set", "parallel.pipeline=4"),
            "--stages 2 and --set parallel.pipeline=4 contradict",
        ),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        invoke(*arguments)
    assert caught.value.exit_code == 78


def test_a_gpu_without_a_trainer_adds_no_speed_and_is_told() -> None:
    """The cut says how many train: 8 GPUs and 2 stages are 2 GPUs."""
    asked = ("small", "--link", "1G", "--sites", "3", "--stages", "2")
    two, eight = (invoke(*asked, "--gpus", gpus) for gpus in ("2xA100", "8xA100"))
    speed = [line for line in two.output.splitlines() if line.startswith("speed")]
    assert speed[0] in eight.output.splitlines()
    assert "6 of 8" in " ".join(eight.output.split()) and "idle GPUs" not in two.output


def test_stages_that_are_set_have_a_core_each_as_those_that_are_asked_for() -> None:
    """One core for four stages made a step four times as long."""
    asked = ("small", "--link", "1G", "--sites", "3", "--json")
    by_option = invoke(*asked, "--stages", "4", "--set", "parallel.microbatches=4")
    by_setting = invoke(*asked, "--set", "parallel.pipeline=4", "--set", "parallel.microbatches=4")
    assert json.loads(by_option.output)["step_s"] == json.loads(by_setting.output)["step_s"]


def test_what_does_not_fit_a_gpu_is_said_first() -> None:
    asked = ("small", "--link", "1G", "--sites", "3", "--gpus")
    small, large = invoke(*asked, "1xA100:1"), invoke(*asked, "1xA100:40")
    assert small.output.startswith("cannot work") and "needs about" in small.output
    assert "cannot work" not in large.output
    assert len(json.loads(invoke(*asked, "1xA100:1", "--json").output)["cannot_work"]) == 1


def test_memory_is_that_of_a_trainer_where_a_stage_has_several() -> None:
    asked = ("small", "--link", "1G", "--sites", "3")
    assert "(each of 8 trainers at most)" in invoke(*asked, "--set", "parallel.shard=8").output
    assert "(each of 2 stages at most)" in invoke(*asked, "--stages", "2").output
    assert "(the whole site)" in invoke(*asked).output


def test_a_site_alone_is_called_so() -> None:
    assert "of a site alone" in invoke("tiny", "--link", "1G", "--sites", "1").output


def test_footprint_is_plain_data() -> None:
    assert all(isinstance(value, int | float) for value in vars_of(footprint(run_of("tiny"), SiteShape(1, 0, 2))))


def vars_of(weight: Footprint) -> list[object]:
    return [getattr(weight, name) for name in Footprint.__dataclass_fields__]
