"""Decides whether a demo proved what it should, and writes report.json."""

import math
from dataclasses import dataclass, field
from typing import Any

from tests.demo.history import SiteHistory, is_measured
from tests.demo.scenario import Facts, Options

CLEARLY_BELOW_NATS = 0.25
"""How far under the unigram entropy the validation loss must be in the full demo: far beyond what noise of the held-out
text could do, and unreachable without learning which token follows which."""


@dataclass
class Report:
    """The report and what is wrong with the run."""

    values: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def require(self, is_true: bool, sentence: str) -> None:
        """Add `sentence` to the failures unless it holds."""
        if not is_true:
            self.failures.append(sentence)


def evaluate(
    options: Options, facts: Facts, histories: dict[str, SiteHistory], *, unigram_entropy: float, num_parameters: int
) -> Report:
    """The report of a story that ended; whether it may be believed is in `failures`."""
    report = Report()
    height = int(str(next(iter(facts.final.values()), {}).get("height") or 0))
    rounds = {k: row for k, row in merged_rounds(histories).items() if k < height}
    validation = {k: loss for h in histories.values() for k, loss in h.validation.items()}
    before = validation[min(validation)] if validation else math.nan
    after = validation[max(validation)] if validation else math.nan
    busy = sum(h.total("train_s") + h.total("idle_s") for h in histories.values())
    report.values = {
        "rounds_committed": height,
        "validation_loss_before": before,
        "validation_loss_after": after,
        "unigram_entropy": unigram_entropy,
        "bytes_per_round_per_site": bytes_per_round(histories),
        "fp32_bytes": 4 * num_parameters,
        "trainer_idle_fraction": sum(h.total("idle_s") for h in histories.values()) / busy if busy else math.nan,
        "tokens": sum(h.total("tokens") for h in histories.values()),
        "parameters": num_parameters,
        "killed": facts.killed | fate_of_round(facts, rounds),
        "liar": facts.liar,
        "sites": {name: site_values(h, rounds, facts) for name, h in histories.items()},
        "rounds": [round_values(k, rounds[k], histories, facts) for k in sorted(rounds)],
        "validation": sorted(validation.items()),
    }
    check_learning(report, options, before, after, unigram_entropy)
    check_agreement(report, histories)
    check_work(report, options, facts, rounds)
    if options.liar:
        check_liar(report, facts, rounds)
    return report


def fate_of_round(facts: Facts, rounds: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """What became of the round in whose exchange the site was killed."""
    index = facts.killed.get("round")
    row = rounds.get(index) if isinstance(index, int) else None
    if row is None:
        return {}
    return {"attempts_of_round": row.get("attempts"), "failures_of_round": row.get("failures")}


def merged_rounds(histories: dict[str, SiteHistory]) -> dict[int, dict[str, Any]]:
    """Committed rounds by number, as any site told them."""
    rounds: dict[int, dict[str, Any]] = {}
    for history in histories.values():
        for index, row in history.rounds.items():
            if index not in rounds or (is_measured(row) and not is_measured(rounds[index])):
                rounds[index] = row
    return rounds


def bytes_per_round(histories: dict[str, SiteHistory]) -> float:
    """Mean bytes that a contributor sent in a round with at least two contributors."""
    sent = [
        row["bytes_sent"]
        for history in histories.values()
        for row in history.rounds.values()
        if row["is_contributor"] and is_measured(row) and len(row["contributors"]) > 1
    ]
    return sum(sent) / len(sent) if sent else math.nan


def site_values(history: SiteHistory, rounds: dict[int, dict[str, Any]], facts: Facts) -> dict[str, Any]:
    """One site of the report."""
    final = facts.final.get(history.name, {})
    peer = str(final.get("peer_id"))
    busy = history.total("train_s") + history.total("idle_s")
    return {
        "peer_id": peer,
        "height": final.get("height"),
        "chain_head": final.get("chain_head"),
        "anchor_sha256": final.get("anchor_sha256"),
        "contributions": sum(peer in {c["peer"] for c in row["contributors"]} for row in rounds.values()),
        "tokens": history.total("tokens"),
        "bytes_sent": history.total("bytes_sent"),
        "bytes_received": history.total("bytes_received"),
        "idle_fraction": history.total("idle_s") / busy if busy else math.nan,
        "exit_code": facts.exit_codes.get(history.name),
        "leave_s": facts.leave_s.get(history.name),
    }


def round_values(index: int, row: dict[str, Any], histories: dict[str, SiteHistory], facts: Facts) -> dict[str, Any]:
    """One round of the report, with site names instead of peer ids."""
    names = {str(h.status.get("peer_id")): h.name for h in histories.values()}
    if facts.liar:
        names[facts.liar["peer_id"]] = facts.liar["name"]
    return {
        "round": index,
        "contributors": sorted(names.get(c["peer"], c["peer"]) for c in row["contributors"]),
        "attempts": row.get("attempts"),
        "times": row.get("times"),
        "bytes_sent": {n: h.rounds[index]["bytes_sent"] for n, h in histories.items() if index in h.rounds},
        "failures": row.get("failures"),
    }


def check_learning(report: Report, options: Options, before: float, after: float, unigram_entropy: float) -> None:
    """The shared model learnt."""
    report.require(math.isfinite(before) and math.isfinite(after), "no validation loss was measured")
    report.require(after < before, f"the validation loss went from {before:.3f} to {after:.3f}")
    if options.with_faults:
        wanted = unigram_entropy - CLEARLY_BELOW_NATS
        report.require(after < wanted, f"the validation loss {after:.3f} is not clearly below {unigram_entropy:.3f}")


def check_agreement(report: Report, histories: dict[str, SiteHistory]) -> None:
    """Equal heads at equal heights, one anchor per state digest, equal ends."""
    for height in sorted({k for h in histories.values() for k in h.heads}):
        heads = {h.heads[height] for h in histories.values() if height in h.heads}
        report.require(len(heads) == 1, f"the sites have {len(heads)} different chain heads at outer step {height}")
    for name in ("chain_head", "anchor_sha256", "height"):
        values = {str(s[name]) for s in report.values["sites"].values()}
        report.require(len(values) == 1 and "None" not in values, f"the sites ended with different {name}: {values}")


def check_work(report: Report, options: Options, facts: Facts, rounds: dict[int, dict[str, Any]]) -> None:
    """Every site did its part, nothing was counted twice, everybody left in order."""
    values = report.values
    report.require(values["rounds_committed"] >= options.rounds, f"only {values['rounds_committed']} rounds committed")
    for name, site in values["sites"].items():
        report.require(site["contributions"] > 0, f"{name} contributed nothing")
        report.require(site["exit_code"] == 0, f"{name} left with exit code {site['exit_code']}")
    used = [(c["peer"], c["phase"]) for row in rounds.values() for c in row["contributors"]]
    report.require(len(used) == len(set(used)), "a contribution was counted twice")
    report.require(
        values["bytes_per_round_per_site"] < values["fp32_bytes"] or options.num_sites < 2,
        f"a round costs {values['bytes_per_round_per_site']:.0f} bytes, no less than fp32 ({values['fp32_bytes']})",
    )
    if options.with_faults and options.num_sites > 1:
        report.require(bool(facts.killed), "nobody was killed")
        first = values["sites"][str(facts.killed.get("site", "A"))]
        report.require(
            first["contributions"] > facts.contributions_before_return, "the killed site never contributed again"
        )


def check_liar(report: Report, facts: Facts, rounds: dict[int, dict[str, Any]]) -> None:
    """Who lied was named by an honest site, for all to read, did no harm to the bits, and is out."""
    liar = facts.liar
    if not liar:
        report.require(False, "nobody lied")
        return
    named = liar["alert_text"]
    report.require(liar["rounds_until_named"] > 0, "the liar was named before it had lied")
    report.require(liar["name"] in named, f"the alert {liar['alert']} does not name the liar: {named}")
    report.require(liar["status_names_it"], "`dilocoxd status` does not name the liar")
    report.require("evicted" in liar["evicted"], f"`dilocoxd evict` said: {liar['evicted']}")
    whole = sorted(set(liar["rounds"]) - set(liar["clipped_in"]))
    report.require(not whole, f"the liar was counted whole in outer steps {whole}")
    late = [k for k, row in rounds.items() if k > liar["out_since"] and _has(row, liar["peer_id"])]
    report.require(not late, f"the liar is in entries {late}, though it was evicted before entry {liar['out_since']}")
    report.require(any(k > liar["out_since"] for k in rounds), "no round was committed after the eviction")


def _has(row: dict[str, Any], peer: str) -> bool:
    return peer in {c["peer"] for c in row["contributors"]}


def in_a_sentence(liar: dict[str, Any]) -> str:
    """What became of the liar, for the summary."""
    return (
        f"{liar['name']} lied ({liar['lie']}) in {len(liar['rounds'])} outer steps, held back in"
        f" {len(liar['clipped_in'])}; named by {liar['named_by']} after {liar['rounds_until_named']}"
        f" ({liar['alert']}: {liar['alert_text']}); evicted; the others' bits stayed equal"
    )
