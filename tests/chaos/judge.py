"""Decides whether a soak kept its promises: chains, phases, files, losses. Reads what the sites left on disk."""

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.soak import Outcome
from tests.harness.running.sites import ROOT

CURVE_PART = 3
"""The last third of the curve is compared: before, the loss falls so fast that a few rounds are several per cent."""
NOTHING_TRAINED = "nothing was trained"
FATAL_ALERTS = ("digest_mismatch", "identity_twice")


@dataclass
class Left:
    """What one run directory says."""

    name: str
    peer: str
    events: list[dict[str, Any]] = field(default_factory=list)
    chain: list[dict[str, Any]] = field(default_factory=list)

    def of(self, event: str) -> list[dict[str, Any]]:
        """Events of one kind."""
        return [record for record in self.events if record["event"] == event]


@dataclass
class Verdict:
    """Figures, and every promise that was broken."""

    values: dict[str, Any] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def require(self, is_true: bool, sentence: str) -> None:
        """Add `sentence` unless it holds."""
        if not is_true:
            self.violations.append(sentence)


def dilocoxd_json(*arguments: str) -> Any:
    """Output of a `dilocoxd` command with --json."""
    command = [sys.executable, "-m", "dilocoxd", *arguments, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return json.loads(done.stdout) if done.stdout.strip() else {"ok": False, "problems": [done.stderr[-500:]]}


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """All events of all lives of a site; the last line of a killed one may be cut."""
    path = run_dir / "logs" / "events.jsonl"
    found: list[dict[str, Any]] = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        found.append(record)
    return found


def read_left(outcome: Outcome) -> list[Left]:
    """The surviving sites' directories."""
    found = []
    for name, run_dir in outcome.run_dirs.items():
        chain = dilocoxd_json("log", "show", str(run_dir), "--last", "0")
        found.append(Left(name, outcome.peers[name], read_events(run_dir), chain if isinstance(chain, list) else []))
    return found


def judge(outcome: Outcome) -> Verdict:
    """Everything but the loss curve."""
    verdict = Verdict(violations=list(outcome.violations))
    left = read_left(outcome)
    check_logs(verdict, outcome, left)
    check_phases(verdict, left)
    everything = [record for one in left for record in one.events]
    everything += [record for folders in outcome.wiped.values() for path in folders for record in read_events(path)]
    count_events(verdict, everything)
    longest = max(left, key=lambda one: len(one.chain)).chain
    verdict.values |= {
        "rounds": len(longest),
        "tokens": sum(c["tokens"] for row in longest for c in row["contributors"]),
        "contributors_mean": round(sum(len(row["contributors"]) for row in longest) / max(1, len(longest)), 2),
        "faults": dict(Counter(str(fault["kind"]) for fault in outcome.faults)),
        "faults_skipped": outcome.skipped,
        "agreed_after_s": outcome.agreed_after_s,
        "all_in_one_entry_after_s": outcome.all_in_after_s,
        "joins_repeated": outcome.joins_repeated,
        "exit_codes": outcome.exit_codes,
        "common_state": list(outcome.common),
        "curve": loss_curve(longest, everything),
    }
    return verdict


def check_logs(verdict: Verdict, outcome: Outcome, left: list[Left]) -> None:
    """Equal chains as far as all agreed in the quiet time, sound files, nothing counted twice."""
    for one in left:
        found = dilocoxd_json("log", "verify", str(outcome.run_dirs[one.name]))
        verdict.require(bool(found["ok"]), f"log verify of {one.name}: {found['problems']}")
        used = [(c["peer"], c["phase"]) for row in one.chain for c in row["contributors"]]
        twice = [pair for pair, count in Counter(used).items() if count > 1]
        verdict.require(not twice, f"{one.name}: counted twice: {twice}")
    if not outcome.common:
        verdict.violations.append("the sites never stood at one state in the quiet time")
        return
    height = int(outcome.common[0])
    chains = {tuple(row["entry_hash"] for row in one.chain[:height]) for one in left}
    verdict.require(len(chains) == 1, f"the logs differ below height {height}, where all had one head")
    verdict.require(
        all(len(chain) == height for chain in chains), f"a log on disk is shorter than the agreed height {height}"
    )
    heads = {chain[-1] for chain in chains if chain}
    verdict.require(heads == {outcome.common[1]}, f"the logs end in {heads}, the sites said {outcome.common[1]}")


def check_phases(verdict: Verdict, left: list[Left]) -> None:
    """R-b: every phase that a surviving site closed is in the chain once, or in its error feedback.

    Into the error feedback go phases that were settled as not included (also those that a lost fork took out of the
    chain again). A phase that was in flight when its site was killed died with it: counted, not lost by the survivors.
    """
    chain = max(left, key=lambda one: len(one.chain)).chain
    totals: Counter[str] = Counter()
    for one in left:
        in_chain = phases_in(chain, one.peer)
        # The last entry of one that left may be another than that of those who were left: it knows its own chain.
        own = phases_in(one.chain, one.peer)
        fates = fates_of(one.events)
        for phase, fate in sorted(fates.items()):
            if phase in in_chain:
                totals["in the chain"] += 1
                verdict.require(
                    fate != "fed back", f"{one.name}: phase {phase} is in the chain and in the error feedback"
                )
            elif fate == "included" and phase in own:
                totals["in the own chain alone, decided as others left"] += 1
            elif fate == "included":
                verdict.violations.append(f"{one.name}: phase {phase} was settled as included and is not in the chain")
            elif fate == "lost":
                verdict.violations.append(f"{one.name}: phase {phase} was closed and has no fate")
            elif fate == "refused":
                verdict.violations.append(f"{one.name}: phase {phase} was closed and then refused by its own site")
            else:
                totals[fate] += 1
        unknown = in_chain - set(fates)
        totals["in the chain, closed in an unfinished line"] += len(unknown)
    verdict.values["phases"] = dict(totals)


def check_undisturbed(verdict: Verdict, left: list[Left]) -> None:
    """`check_phases` for sites that nobody touched: none of their phases died, and only the last was in flight at the
    end. Forks are no fault: where a site has no CPU for longer than it is waited for, others may go on without it (end
    of protocol/06-rounds.md), and what the lost branch had is in the error feedback."""
    check_phases(verdict, left)
    for one in left:
        closed = {record["phase"] for record in one.of("phase.closed")}
        verdict.require(closed == set(range(len(closed))), f"{one.name}: its phases are {sorted(closed)}")
        fates = fates_of(one.events)
        died = sorted(phase for phase, fate in fates.items() if fate == "died")
        verdict.require(not died, f"{one.name}: phases {died} died, and nobody killed it")
        flying = {phase for phase, fate in fates.items() if fate == "saved"} - phases_in(one.chain, one.peer)
        verdict.require(flying <= {max(closed, default=0)}, f"{one.name}: phases {sorted(flying)} were in flight")


def phases_in(chain: list[dict[str, Any]], peer: str) -> set[int]:
    """Phases of a peer that the chain counts."""
    return {c["phase"] for row in chain for c in row["contributors"] if c["peer"] == peer}


def fates_of(events: list[dict[str, Any]]) -> dict[int, str]:
    """Phase -> included, fed back, empty (no inner step), refused, died (its site was killed), saved (in flight at a
    clean end), lost."""
    fates: dict[int, str] = {}
    open_phases: set[int] = set()
    for record in events:
        kind = record["event"]
        if kind == "phase.closed":
            open_phases.add(record["phase"])
        elif kind == "contribution.settled":
            open_phases.discard(record["phase"])
            fates[record["phase"]] = "included" if record["is_included"] else "fed back"
        elif kind == "contribution.returned":
            fates[record["phase"]] = "included" if record["is_withdrawn"] else "fed back"
        elif kind == "contribution.refused":
            open_phases.discard(record["phase"])
            fates[record["phase"]] = "empty" if record["reason"].startswith(NOTHING_TRAINED) else "refused"
        elif kind == "daemon.started":
            fates |= dict.fromkeys(open_phases, "died")
            open_phases.clear()
        elif kind == "daemon.stopped":
            fates |= dict.fromkeys(open_phases, "saved")
            open_phases.clear()
    return fates | dict.fromkeys(open_phases, "lost")


def count_events(verdict: Verdict, events: list[dict[str, Any]]) -> None:
    """What happened, in numbers; alerts that must never come are violations."""
    kinds = Counter(record["event"] for record in events)
    names = ("recovery.finished", "fork.resolved", "round.abandoned", "worker.died", "peer.lost", "loop.blocked")
    verdict.values["events"] = {name: kinds[name] for name in names}
    rejected = Counter(f"{r['code']}" for r in events if r["event"] == "input.rejected")
    verdict.values["input_rejected"] = dict(rejected)
    alerts = Counter(r["code"] for r in events if r["event"] == "alert.raised")
    verdict.values["alerts"] = dict(alerts)
    for code in FATAL_ALERTS:
        texts = [r["text"] for r in events if r["event"] == "alert.raised" and r["code"] == code]
        verdict.require(not texts, f"{len(texts)} alerts {code}: {texts[:2]}")


def loss_curve(chain: list[dict[str, Any]], events: list[dict[str, Any]]) -> list[tuple[int, float]]:
    """(tokens in the chain, validation loss of the shared model) for each height of the final chain that was measured.

    Forks that lost have losses of their own under the same numbers: the median of what the sites say is taken.
    """
    tokens = [0]
    for row in chain:
        tokens.append(tokens[-1] + sum(c["tokens"] for c in row["contributors"]))
    measured: dict[int, list[float]] = {}
    for record in events:
        if record["event"] == "validation.measured" and record["round"] < len(tokens):
            measured.setdefault(record["round"], []).append(record["validation_loss"])
    return [(tokens[k], sorted(losses)[len(losses) // 2]) for k, losses in sorted(measured.items())]


def interpolated(curve: list[tuple[int, float]], tokens: int) -> float | None:
    """Loss of a curve at this many tokens; None outside."""
    for (left, before), (right, after) in itertools.pairwise(curve):
        if left <= tokens <= right:
            part = (tokens - left) / (right - left) if right > left else 0.0
            return before + part * (after - before)
    return None


def loss_excess(curve: list[tuple[int, float]], reference: list[tuple[int, float]]) -> float | None:
    """How much higher the loss is than the reference's at equal tokens, mean over the last third; None: no overlap."""
    last = max((tokens for tokens, _ in curve), default=0)
    ratios = []
    for tokens, loss in curve:
        expected = interpolated(reference, tokens)
        if expected is not None and tokens >= last * (CURVE_PART - 1) / CURVE_PART:
            ratios.append(loss / expected - 1)
    return sum(ratios) / len(ratios) if ratios else None
