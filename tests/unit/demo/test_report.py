"""The demo's judgement: a good run passes, and each way of going wrong is found."""

from pathlib import Path
from typing import Any

import pytest

from tests.demo import plot
from tests.demo.__main__ import parsed
from tests.demo.history import SiteHistory
from tests.demo.report import Report, evaluate, in_a_sentence
from tests.demo.scenario import Facts, Options

ENTROPY = 5.5


def options(**changes: Any) -> Options:
    values: dict[str, Any] = {
        "num_sites": 2,
        "rounds": 3,
        "with_faults": False,
        "preset": "demo",
        "out": Path("out"),
    } | changes
    return Options(**values)


def row(index: int, *contributors: tuple[str, int]) -> dict[str, Any]:
    return {
        "round": index,
        "contributors": [{"peer": peer, "phase": phase} for peer, phase in contributors],
        "is_contributor": True,
        "attempts": 1,
        "bytes_sent": 1000,
        "committed_at": 100.0 + index,
        "times": {"exchange_s": 0.1},
        "failures": [],
    }


def status(peer: str, height: int) -> dict[str, Any]:
    return {
        "peer_id": peer,
        "height": height,
        "chain_head": f"head{height}",
        "anchor_sha256": f"anchor{height}",
        "state_digest": f"digest{height}",
        "uptime_s": float(height + 1),
        "totals": {"train_s": 99.0, "idle_s": 1.0, "tokens": 1000, "bytes_sent": 3000},
    }


def good_histories() -> dict[str, SiteHistory]:
    histories = {name: SiteHistory(name) for name in "AB"}
    for name, history in histories.items():
        for height in range(4):
            history.take_status(status(f"Qm{name}", height))
        rows = [row(k, ("QmA", k), ("QmB", k)) for k in range(3)]
        losses = {
            "inner": [[100.0 + k, k, 6.0 - k] for k in range(4)],
            "validation": [[100.0 + k, k, 6.9 - k] for k in range(4)],
        }
        span = {"kind": "compute", "start": 100.0, "end": 101.0, "round": 0}
        history.take_history(rows, losses, [span])
    return histories


def judged(histories: dict[str, SiteHistory], *, facts: Facts | None = None, **changes: Any) -> Report:
    known = facts or Facts(exit_codes={"A": 0, "B": 0})
    known.final = {name: dict(history.status) for name, history in histories.items()}
    return evaluate(options(**changes), known, histories, unigram_entropy=ENTROPY, num_parameters=1000)


def test_good_run_passes_with_its_figures() -> None:
    report = judged(good_histories())
    assert report.failures == []
    values = report.values
    assert values["rounds_committed"] == 3
    assert (values["validation_loss_before"], values["validation_loss_after"]) == (6.9, pytest.approx(3.9))
    assert values["bytes_per_round_per_site"] == 1000
    assert values["fp32_bytes"] == 4000
    assert values["trainer_idle_fraction"] == pytest.approx(0.01)
    assert values["sites"]["A"]["contributions"] == 3
    assert values["sites"]["B"]["chain_head"] == "head3"


def test_different_ends_and_different_heads_are_found() -> None:
    histories = good_histories()
    histories["B"].status["anchor_sha256"] = "other"
    histories["B"].heads[2] = "other"
    failures = " ".join(judged(histories).failures)
    assert "different anchor_sha256" in failures
    assert "different chain heads at outer step 2" in failures


def test_model_that_learnt_nothing_is_found() -> None:
    histories = good_histories()
    for history in histories.values():
        history.validation = dict.fromkeys(range(4), 6.9)
    assert "the validation loss went from 6.900 to 6.900" in judged(histories).failures
    for history in histories.values():
        history.validation[3] = ENTROPY - 0.1
    facts = Facts(exit_codes={"A": 0, "B": 0}, killed={"site": "A"})
    assert any("not clearly below" in f for f in judged(histories, with_faults=True, facts=facts).failures)


def test_idle_site_double_count_bad_exit_and_short_run_are_found() -> None:
    histories = good_histories()
    for history in histories.values():
        history.rounds = {k: row(k, ("QmA", 0)) for k in range(3)}
    facts = Facts(exit_codes={"A": 0, "B": -9})
    failures = " ".join(judged(histories, rounds=9, facts=facts).failures)
    assert "B contributed nothing" in failures
    assert "a contribution was counted twice" in failures
    assert "B left with exit code -9" in failures
    assert "only 3 rounds committed" in failures


def test_killed_site_that_never_contributed_again_is_found() -> None:
    facts = Facts(exit_codes={"A": 0, "B": 0}, killed={"site": "A"}, contributions_before_return=3)
    assert "the killed site never contributed again" in judged(good_histories(), with_faults=True, facts=facts).failures


def liar(**changes: Any) -> dict[str, Any]:
    return {
        "name": "D",
        "peer_id": "QmD",
        "lie": "times -1e6",
        "alert": "contrary_contribution",
        "alert_text": "D: 100% left out of entry 1, against the others",
        "named_by": "B",
        "rounds_until_named": 1,
        "status_names_it": True,
        "evicted": "D is evicted; the others are told",
        "out_since": 1,
        "clipped_in": [0, 1],
        "rounds": [0, 1],
    } | changes


def judged_with_liar(in_rounds: tuple[int, ...] = (0, 1), **changes: Any) -> Report:
    histories = good_histories()
    for history in histories.values():
        for k in in_rounds:
            history.rounds[k]["contributors"].append({"peer": "QmD", "phase": k})
    facts = Facts(exit_codes={"A": 0, "B": 0}, liar=liar(**changes))
    return judged(histories, facts=facts, liar="huge")


def test_liar_that_was_named_clipped_and_evicted_passes_and_is_told() -> None:
    report = judged_with_liar()
    assert report.failures == []
    assert report.values["rounds"][1]["contributors"] == ["A", "B", "D"]
    told = in_a_sentence(report.values["liar"])
    assert "D lied (times -1e6) in 2 outer steps" in told
    assert "named by B after 1" in told


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rounds_until_named": 0}, "named before it had lied"),
        ({"alert_text": "B: 100% left out"}, "does not name the liar"),
        ({"status_names_it": False}, "`dilocoxd status` does not name the liar"),
        ({"evicted": "there is no site D"}, "`dilocoxd evict` said: there is no site D"),
        ({"clipped_in": [0]}, "counted whole in outer steps [1]"),
        ({"in_rounds": (0, 1, 2)}, "the liar is in entries [2], though it was evicted"),
        ({"out_since": 2}, "no round was committed after the eviction"),
    ],
)
def test_liar_that_got_away_is_found(changes: dict[str, Any], sentence: str) -> None:
    assert any(sentence in failure for failure in judged_with_liar(**changes).failures)


def test_liar_that_never_came_is_found() -> None:
    assert "nobody lied" in judged(good_histories(), liar="huge").failures


def test_counters_go_on_over_a_restart() -> None:
    history = SiteHistory("A")
    history.take_status({"uptime_s": 10.0, "totals": {"tokens": 100}})
    history.take_status({"uptime_s": 1.0, "totals": {"tokens": 5}})
    history.take_status({"uptime_s": 2.0, "totals": {"tokens": 7}})
    assert history.total("tokens") == 107


def test_rounds_known_from_the_log_alone_do_not_replace_measured_ones() -> None:
    histories = good_histories()
    from_log = {**row(1, ("QmA", 1), ("QmB", 1)), "attempts": 0, "bytes_sent": 0}
    histories["A"].take_history([from_log], {}, [])
    assert histories["A"].rounds[1]["bytes_sent"] == 1000
    histories["A"].rounds[1] = from_log  # never seen while it was measured
    report = judged(histories)
    assert report.values["bytes_per_round_per_site"] == 1000
    assert report.values["rounds"][1]["attempts"] == 1


@pytest.mark.parametrize(
    ("arguments", "sites", "lie"),
    [
        ([], 3, "huge"),
        (["--liar", "flipped"], 3, "flipped"),
        (["--liar", "none"], 3, ""),
        (["--no-faults"], 3, ""),
        (["--sites", "1"], 1, ""),
        (["--sites", "2", "--no-faults", "--liar", "huge"], 2, "huge"),
    ],
)
def test_who_lies_follows_from_the_options(arguments: list[str], sites: int, lie: str) -> None:
    chosen = parsed(arguments)
    assert (chosen.num_sites, chosen.liar) == (sites, lie)


def test_liar_among_too_few_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(["--sites", "1", "--liar", "huge"])
    assert "needs --sites 2 or more" in capsys.readouterr().err


def test_plot_is_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "demo.png"
    plot.draw(good_histories(), path, unigram_entropy=ENTROPY, marks={"A killed": 102.0})
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000
