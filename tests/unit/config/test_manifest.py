"""The manifest: what is refused and how it is said, canonical bytes, run id, presets, warnings."""

import copy
import hashlib
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.config.fields import Section
from dilocoxd.config.loading import PROBLEMS_MAX, canonical_json, read_toml
from dilocoxd.config.manifest import Manifest, load_manifest, manifest_from_canonical, manifest_from_tables
from dilocoxd.config.presets import preset_names, preset_tables, strategy_names
from dilocoxd.config.site import SiteConfig
from dilocoxd.config.stability import safe_outer_lr
from dilocoxd.errors import ConfigError


def tables(**changes: Any) -> dict[str, Any]:
    """The tiny preset with `section__field=value` changed; None removes a field."""
    result = copy.deepcopy(preset_tables("tiny"))
    for name, value in changes.items():
        section, field = name.split("__", 1)
        if value is None:
            result[section].pop(field)
        else:
            result.setdefault(section, {})[field] = value
    return result


def refusal(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        manifest_from_tables(tables(**changes), source="run.toml")
    text = str(caught.value)
    assert text.startswith("run.toml: ")
    assert "\n" not in text
    return text


def test_unknown_field_names_the_one_that_was_meant() -> None:
    assert refusal(outer__learning_rate=0.5).endswith("; remove it, known here: optimizer, lr, momentum")
    assert "unknown field strategy.inner_step; did you mean strategy.inner_steps?" in refusal(strategy__inner_step=3)
    with pytest.raises(ConfigError, match=r"unknown section strategie; did you mean strategy\?"):
        manifest_from_tables(tables() | {"strategie": {}}, source="run.toml")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"outer__lr": "0.7"}, "outer.lr = '0.7' is wrong: give a number without quotes"),
        (
            {"outer__lr": "7%"},
            "outer.lr = '7%' is wrong: give a number without a unit (`dilocoxd check-config --explain` says in",
        ),
        ({"outer__lr": ".7"}, "outer.lr = '.7' is wrong: give a number, with digits before and after the point"),
        ({"outer__lr": 0}, "outer.lr = 0 is wrong: give a value greater than 0"),
        ({"outer__lr": float("nan")}, "outer.lr = nan is wrong: give a finite number"),
        ({"strategy__inner_steps": 2.5}, "strategy.inner_steps = 2.5 is wrong: give a whole number"),
        ({"strategy__inner_steps": True}, "strategy.inner_steps = True is wrong: give a whole number"),
        ({"strategy__inner_steps": "16"}, "inner_steps = '16' is wrong: give a whole number without quotes"),
        ({"strategy__inner_steps": "9 steps"}, "= '9 steps' is wrong: give a whole number without a unit (`dilocoxd"),
        ({"strategy__codec": "int3"}, "strategy.codec = 'int3' is wrong: use one of 'fp32', 'fp16', 'bf16'"),
        ({"strategy__segment_elements_max": 5000}, "give a multiple of 4096"),
        ({"model__hidden_size": None}, "field model.hidden_size is missing; add it"),
        ({"run__name": "My Run"}, "run.name = 'My Run' is wrong: it must match"),
        ({"data__sha256": "abc"}, "data.sha256 = 'abc' is wrong: it must match"),
    ],
)
def test_wrong_value_is_named_with_its_remedy(changes: dict[str, Any], sentence: str) -> None:
    told = refusal(**changes)
    assert sentence in told and ("quotes" in told) == ("quotes" in sentence), "nobody is told of quotes that are none"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"model__num_heads": 3, "model__num_kv_heads": 1},
            "model.hidden_size = 32 is not a multiple of model.num_heads = 3",
        ),
        ({"model__num_kv_heads": 3}, "model.num_heads = 2 is not a multiple of model.num_kv_heads = 3"),
        ({"model__hidden_size": 34, "model__num_heads": 2}, "is odd, but rotary positions need an even head size"),
        ({"model__extra": {"mlp_bias": True}}, "means nothing to model.kind = 'native'"),
        ({"inner__batch_sequences_max": 3}, "inner.batch_sequences_max = 3 is below inner.batch_sequences = 4"),
        ({"inner__dtypes_allowed": ["bfloat16", "bfloat16"]}, "inner.dtypes_allowed names one twice"),
        ({"inner__microbatches": 3}, "inner.batch_sequences = 4 is not a multiple of inner.microbatches = 3"),
        ({"inner__warmup_steps": 2000}, "inner.warmup_steps = 2000 leaves nothing of inner.total_steps = 2000"),
        ({"outer__optimizer": "sgd"}, "outer.momentum = 0.6 means nothing to outer.optimizer = 'sgd'"),
        ({"strategy__extend_steps_max": 0}, "contradicts strategy.late_policy = 'extend'"),
        ({"strategy__error_feedback": "none", "strategy__ef_beta": 0.9}, "means nothing to strategy.error_feedback"),
        ({"round__grace_min_s": 500.0}, "round.grace_min_s = 500.0 is above round.grace_max_s = 120.0"),
        ({"round__inner_steps_max": 8}, "round.inner_steps_max = 8 is below"),
        ({"round__tokens_max": 100}, "round.tokens_max = 100 is below"),
    ],
)
def test_contradiction_is_one_sentence_with_both_values(changes: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(**changes)


def test_several_problems_are_counted() -> None:
    assert refusal(outer__lr=-1, outer__momentum=2).endswith("(and 1 more)")


def test_each_of_several_problems_has_its_sentence() -> None:
    with pytest.raises(ConfigError) as caught:
        manifest_from_tables(tables(outer__lr=-1, outer__momentum=2, model__hiddn_size=1), source="run.toml")
    first, *others = caught.value.problems
    assert first == "run.toml: unknown field model.hiddn_size; did you mean model.hidden_size?"
    assert [text.partition(" is wrong: ")[0] for text in others] == [
        "run.toml: outer.lr = -1", "run.toml: outer.momentum = 2",
    ]  # fmt: skip


def test_a_file_of_another_kind_does_not_flood_the_terminal() -> None:
    with pytest.raises(ConfigError) as caught:
        manifest_from_tables({**tables(), **{f"part_{n}": {} for n in range(PROBLEMS_MAX + 3)}}, source="run.toml")
    assert len(caught.value.problems) == PROBLEMS_MAX + 1
    assert caught.value.problems[-1] == "run.toml: 3 more problems; mend these first"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"[run\n", "not valid TOML"), (b"\xff\xfe", "not valid TOML"), (b"#" * (2 << 20), "larger than")],
)
def test_file_that_is_no_toml_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        read_toml(path)


def test_missing_file_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read \(No such file or directory\)"):
        load_manifest(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("name", preset_names())
def test_preset_is_valid_survives_toml_and_warns_of_nothing(name: str, tmp_path: Path) -> None:
    manifest = manifest_from_tables(preset_tables(name), source=name)
    assert manifest.warnings() == []
    path = tmp_path / "run.toml"
    path.write_text(manifest.to_toml())
    assert load_manifest(path) == manifest
    assert load_manifest(path).run_id == manifest.run_id


@pytest.mark.parametrize("strategy", strategy_names())
def test_strategy_of_any_model_is_valid_and_within_its_stability_limit(strategy: str) -> None:
    for name in preset_names():
        manifest = manifest_from_tables(preset_tables(f"{name}:{strategy}"), source=strategy)
        assert manifest.strategy.name == strategy
        assert manifest.model == manifest_from_tables(preset_tables(name), source=name).model
        assert manifest.warnings() == []


def test_unknown_strategy_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no strategy 'fast'; use one of .*diloco, dilocox"):
        preset_tables("tiny:fast")


def test_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="use one of demo, small, tiny or the path"):
        preset_tables("huge")


def test_run_id_ends_with_the_hash_of_bytes_that_depend_on_values_only() -> None:
    manifest = manifest_from_tables(tables(), source="x")
    data = manifest.canonical_bytes()
    assert manifest.run_id == "tiny-" + hashlib.sha256(data).hexdigest()[:16]
    # Written differently, but equal: whole number for a float, defaults spelt out, other order of sections.
    same = manifest_from_tables(dict(reversed(tables(outer__lr=0.7, inner__beta1=0.9).items())), source="x")
    assert same.canonical_bytes() == data
    one = manifest_from_tables(tables(outer__lr=1), source="x")
    assert one.canonical_bytes() == manifest_from_tables(tables(outer__lr=1.0), source="x").canonical_bytes()
    assert one.run_id != manifest.run_id


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"reduction__owner_feedback": "kept"}, "a sum holds what only its owner knows; set owner_feedback to 'none'"),
        ({"reduction__reducer": "gather"}, "every site sums all itself"),
        ({"strategy__transform": "lowrank", "strategy__lowrank_r": 4}, "they are encoded later; set verify to 'none'"),
        (
            {"strategy__transform": "mask", "strategy__mask_keep_one_in": 4},
            "they are encoded later; set verify to 'none'",
        ),
        ({"reduction__verify_fraction": 0}, "reduction.verify_fraction = 0"),
        ({"reduction__verify_fraction": 1.5}, "reduction.verify_fraction = 1.5"),
    ],
)
@pytest.mark.parametrize("verify", ["after", "before_vote"])
def test_sums_that_nobody_can_check_are_not_to_be_checked(verify: str, changes: dict[str, Any], sentence: str) -> None:
    settings = {"reduction__verify": verify, "reduction__owner_feedback": "none"} | changes
    with pytest.raises(ConfigError, match=re.escape(sentence)) as refused:
        manifest_from_tables(tables(**settings), source="x")
    if "or, so that nobody need be trusted with a sum, reducer to 'gather'" in str(refused.value):
        instead = settings | {"reduction__verify": "none", "reduction__reducer": "gather"}
        assert manifest_from_tables(tables(**instead), source="x").is_gathered
    else:
        assert "transform" not in "".join(changes)


def test_run_whose_sites_have_one_arithmetic_has_the_id_that_it_had_before_they_could_choose() -> None:
    plain, free = (manifest_from_tables(t, source="x") for t in (tables(), tables(inner__dtypes_allowed=["bfloat16"])))
    assert b"dtypes" not in plain.canonical_bytes()
    assert b'"dtypes_allowed":["bfloat16"]' in free.canonical_bytes()
    assert manifest_from_canonical(free.canonical_bytes(), source="x") == free


def test_run_that_checks_no_sums_has_the_id_that_it_had_before_there_were_audits() -> None:
    plain, asked = tables(), tables(reduction__verify="none", reduction__verify_fraction=0.1)
    assert b"verify" not in manifest_from_tables(plain, source="x").canonical_bytes()
    assert manifest_from_tables(plain, source="x").run_id == manifest_from_tables(asked, source="x").run_id
    checked = tables(reduction__verify="after", reduction__owner_feedback="none")
    assert b'"verify":"after"' in manifest_from_tables(checked, source="x").canonical_bytes()


def test_canonical_bytes_have_one_form() -> None:
    data = manifest_from_tables(tables(), source="x").canonical_bytes()
    assert data.isascii()
    assert b" " not in data
    assert data.startswith(b'{"aggregation":{"centered_clip":')
    assert json.loads(data)["inner"]["lr"] == 0.003


def test_manifest_from_a_peer_must_be_canonical() -> None:
    manifest = manifest_from_tables(tables(), source="x")
    data = manifest.canonical_bytes()
    assert manifest_from_canonical(data, source="peer") == manifest
    spaced = json.dumps(json.loads(data), sort_keys=True).encode()
    for bad, sentence in (
        (spaced, "not in canonical form"),
        (data[:-1], "not JSON"),
        (b"[]", "not a table"),
        (b"[" * 100_000, "not JSON"),
        (b"{}", "field run is missing"),
        (b" " * (2 << 20), "at most"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            manifest_from_canonical(bad, source="peer")


@pytest.mark.parametrize("mark", ["\x1b", "\n", "\x9b", "\u2028", "\u202e"])
@pytest.mark.parametrize(
    "place", [("data", "corpus"), ("run", "created"), ("strategy", "name"), ("model", "extra"), ("strategy",), ()]
)
def test_no_text_of_a_stranger_reaches_the_terminal_of_who_joins(place: tuple[str, ...], mark: str) -> None:
    """E9 holds for a manifest too: `join` tells what it says, and names a field that it does not know."""
    changed = json.loads(manifest_from_tables(tables(), source="x").canonical_bytes())
    at = changed
    for name in place[:-1]:
        at = at[name]
    if len(place) == 2 and isinstance(at[place[-1]], str):
        at[place[-1]] = f"a{mark}b"
    else:
        (at[place[-1]] if place else at)[f"a{mark}b"] = 1
    with pytest.raises(ConfigError, match="holds a control character") as found:
        manifest_from_canonical(canonical_json(changed), source="peer")
    assert all(sentence.isprintable() for sentence in found.value.problems)


def test_created_is_filled_in_once_and_makes_another_run() -> None:
    manifest = manifest_from_tables(tables(), source="x")
    first = manifest.created_now(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert first.run.created == "2026-01-02T03:04:05Z"
    assert first.created_now() == first
    assert first.run_id != manifest.run_id


def test_claim_limits_follow_from_the_longest_phase() -> None:
    manifest = manifest_from_tables(tables(), source="x")
    assert manifest.claimed_steps_max == 88
    assert manifest.claimed_tokens_max == 88 * 4 * 32
    assert manifest_from_tables(tables(round__inner_steps_max=100), source="x").claimed_steps_max == 100


def test_outer_lr_beyond_stability_warns_by_delay() -> None:
    assert not manifest_from_tables(tables(outer__lr=0.7, outer__momentum=0.9), source="x").warnings()
    delayed = manifest_from_tables(tables(outer__lr=0.7, outer__momentum=0.9, strategy__delay="phase"), source="x")
    assert "stay below 0.253" in delayed.warnings()[0]
    lossy = manifest_from_tables(tables(strategy__codec="int4", strategy__error_feedback="none"), source="x")
    assert "error_feedback" in lossy.warnings()[0]


def simulated_growth(lr: float, momentum: float, *, delay: int, rounds: int = 4000) -> float:
    """Size of one scalar mode with contraction 1 after many outer steps, started at 1."""
    x, m = 1.0, 0.0
    pending = [0.0] * delay
    for _ in range(rounds):
        pending.append(x)
        gradient = pending.pop(0)
        m = momentum * m + gradient
        x -= lr * (gradient + momentum * m)
        if abs(x) > 1e12:
            break
    return abs(x)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.8, 0.9])
@pytest.mark.parametrize("delay", [0, 1])
def test_stability_limit_separates_converging_from_diverging(momentum: float, delay: int) -> None:
    limit = safe_outer_lr(momentum, is_delayed=bool(delay))
    assert simulated_growth(0.97 * limit, momentum, delay=delay) < 1e-3
    assert simulated_growth(1.03 * limit, momentum, delay=delay) > 1e3


@pytest.mark.parametrize("model", [Manifest, SiteConfig])
def test_every_field_tells_unit_range_effect_and_cost(model: type[Section]) -> None:
    for section_name, section in model.model_fields.items():
        kind = section.annotation
        assert isinstance(kind, type)
        assert issubclass(kind, Section)
        for name, field in kind.model_fields.items():
            text = field.description or ""
            assert all(word in text for word in (" Unit: ", " Range: ", " Cost: ")), f"{section_name}.{name}: {text!r}"
            if field.annotation in (int, float):
                assert any(hasattr(m, b) for m in field.metadata for b in ("gt", "ge")), f"{section_name}.{name}"
