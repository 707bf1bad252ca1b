"""The soak: sites on a tiny model, faults from a plan, then quiet, then what is left; and the undisturbed run."""

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.plan import Fault
from tests.chaos.torment import Torment, Tormented
from tests.chaos.watch import Watch
from tests.harness.running.network_namespaces import NamespacedSite, namespaced
from tests.harness.running.sites import STOP_S, sites
from tests.harness.running.training import write_corpus

TICK_S = 0.1
PROGRESS_EVERY_S = 20.0
START_S = 240.0
QUIET_S = 240.0
CALM_ROUNDS = 8
"""Rounds after the faults: their losses are what the sites end with."""
LEAVE_S = STOP_S
SETTINGS: dict[str, object] = {
    "data.validation_sequences": 48,
    "data.evaluate_every_rounds": 1,
    "inner.total_steps": 1_000_000,
    "inner.min_lr_ratio": 1.0,
    "strategy.inner_steps": 100,
    "strategy.extend_steps_max": 50,
    "strategy.participation_rounds": 256,
    "snapshot.every_rounds": 5,
    "snapshot.keep": 3,
}
"""Constant learning rate: a wiped site starts its schedule anew, and so the runs stay comparable by tokens. A phase
takes about a second, a round of all half a second more: as with users, whose phases take minutes, and other than with
phases of 25 steps, a site that is cut off does not train more than all the others together. One of several times its
length throws the momentum of the outer step far off, so phases are extended by half at most. Participation looks back
256 rounds, some minutes here; the default of 64 is meant for phases of minutes."""


class SoakError(Exception):
    """The soak could not be carried on; the message says what did not happen."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line chose."""

    seconds: float
    num_sites: int
    seed: int
    work: Path
    prefix: str
    """Of the network namespaces: at most 8 characters."""
    settings: tuple[str, ...] = ()


@dataclass
class Outcome:
    """What a soak left, besides the run directories."""

    run_dirs: dict[str, Path] = field(default_factory=dict)
    peers: dict[str, str] = field(default_factory=dict)
    """Site -> peer id at the end."""
    wiped: dict[str, list[Path]] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    skipped: int = 0
    violations: list[str] = field(default_factory=list)
    common: tuple[Any, ...] = ()
    """(height, chain head, anchor, digest) that all sites had in the quiet time."""
    agreed_after_s: float = 0.0
    all_in_after_s: float = 0.0
    exit_codes: dict[str, int | None] = field(default_factory=dict)
    joins_repeated: int = 0
    heights: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    """Seconds since the first fault could have come -> height of every site."""
    started_unix: float = 0.0


class Soak:
    """One run of sites in one network."""

    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        self.options = options
        self.say = say
        self.outcome = Outcome()

    def run(self, plan: list[Fault], *, until_tokens: int = 0) -> Outcome:
        """Start, torment (or train undisturbed until the chain holds `until_tokens`), calm down, stop."""
        options = self.options
        options.work.mkdir(parents=True, exist_ok=True)
        names = [chr(ord("a") + index) for index in range(options.num_sites)]
        with namespaced(options.prefix, options.work, names) as (network, members), sites(*members):
            with Watch(list(members)) as watch:
                torment = Torment(network, members, watch, self.say)
                torment.site_options = ["--cache", str(options.work.parent / "cache"), "--stages", "1"]
                self._start_all(torment)
                self.outcome.started_unix = time.time()
                try:
                    if until_tokens:
                        self._train_until(torment, until_tokens)
                    else:
                        self._torment(torment, plan)
                    self._calm_down(torment)
                finally:
                    self._note(torment)
            self._stop_all(torment)
            self._check_nothing_left(torment)
        return self.outcome

    # --- phases of the soak ---

    def _start_all(self, torment: Torment) -> None:
        first, *others = torment.members
        folder = self.options.work.parent
        corpus = folder / "corpus"
        settings = {"data.corpus": f'"{corpus if corpus.is_dir() else write_corpus(folder)}"', **SETTINGS}
        given = [f"{name}={value}" for name, value in settings.items()] + list(self.options.settings)
        options = [word for setting in given for word in ("--set", setting)]
        torment.start(first, "start", "tiny", *first.site.options(), *torment.site_options, *options)
        self._wait(torment, lambda: torment.watch.seen[first.site.name].state == "training", "the founder to train")
        for member in others:
            torment.join(member)
        self._wait(torment, lambda: self._all_training(torment), "all sites to train")
        self.say(f"{len(torment.members)} sites train")

    def _torment(self, torment: Torment, plan: list[Fault]) -> None:
        started, todo, told = time.monotonic(), list(plan), 0.0
        while (now := time.monotonic() - started) < self.options.seconds:
            torment.look_after()
            while todo and todo[0].at_s <= now:
                torment.inflict(todo.pop(0))
            if now - told >= PROGRESS_EVERY_S:
                told = now
                self._progress(torment, now)
            time.sleep(TICK_S)

    def _train_until(self, torment: Torment, tokens: int) -> None:
        """Undisturbed, until the chain holds so many tokens."""
        started, told, total, rounds = time.monotonic(), 0.0, 0, 0
        while total < tokens:
            torment.look_after()
            rows = torment.members[0].site.get(f"/v1/rounds?from={rounds}&limit=500") or []
            for row in sorted(rows, key=lambda row: row["round"]):
                if row["applied_at"] and row["round"] == rounds:
                    rounds += 1
                    total += sum(c["tokens"] for c in row["contributors"])
            now = time.monotonic() - started
            if now - told >= PROGRESS_EVERY_S:
                told = now
                self._progress(torment, now)
                self.say(f"{total:,} of {tokens:,} tokens")
            time.sleep(1.0)

    def _calm_down(self, torment: Torment) -> None:
        """No more faults: everybody must come to one state, and into one entry."""
        self.say("no more faults")
        torment.undo_all()
        quiet_at = time.monotonic()
        self._wait(torment, lambda: self._all_training(torment), "all sites to train again", QUIET_S)
        trained_at = time.monotonic()
        self._wait(torment, lambda: torment.watch.common_state(quiet_at) is not None, "one state at all sites", QUIET_S)
        self.outcome.agreed_after_s = round(time.monotonic() - quiet_at, 1)
        first = torment.members[0].site
        height = torment.watch.seen[first.name].height
        self._wait(torment, lambda: self._all_in_one_entry(torment, height), "an entry of all sites", QUIET_S)
        self.outcome.all_in_after_s = round(time.monotonic() - quiet_at, 1)
        height = torment.watch.seen[first.name].height + CALM_ROUNDS
        seen = torment.watch.seen.values()
        self._wait(torment, lambda: min(one.height for one in seen) >= height, "rounds without faults", QUIET_S)
        # What counts is a state that includes the joint entry.
        common = torment.watch.common_state(trained_at)
        assert common is not None or torment.watch.common_state(quiet_at) is not None
        self.outcome.common = common or torment.watch.common_state(quiet_at) or ()
        self.say(
            f"one state after {self.outcome.agreed_after_s} s, one entry of all after {self.outcome.all_in_after_s} s"
        )

    def _stop_all(self, torment: Torment) -> None:
        for member in torment.members:
            member.is_expected_down = True
            if member.site.process is not None:
                member.site.process.terminate()
        for member in torment.members:
            code: int | None = None
            try:
                code = member.site.process.wait(LEAVE_S) if member.site.process is not None else None
            except subprocess.TimeoutExpired:
                self.outcome.violations.append(f"{member.site.name} did not leave within {LEAVE_S:g} s of SIGTERM")
            self.outcome.exit_codes[member.site.name] = code
            if code not in (0, None):
                self.outcome.violations.append(f"{member.site.name} left with exit code {code}")

    def _check_nothing_left(self, torment: Torment) -> None:
        for member in torment.members:
            if left := torment.outliving(member):
                self.outcome.violations.append(f"{member.site.name}: {left} outlived their daemon, which left in order")

    # --- means ---

    def _wait(self, torment: Torment, condition: Callable[[], bool], what: str, timeout_s: float = START_S) -> None:
        deadline, told = time.monotonic() + timeout_s, time.monotonic()
        while not condition():
            torment.look_after()
            if time.monotonic() > deadline:
                told_by = "\n".join(member.site.describe() for member in torment.members)
                raise SoakError(f"not within {timeout_s:g} s: {what}\n{told_by}")
            if time.monotonic() > told + PROGRESS_EVERY_S:
                told = time.monotonic()
                self._progress(torment, told)
            time.sleep(TICK_S)

    def _all_training(self, torment: Torment) -> bool:
        return all(torment.watch.seen[member.site.name].state == "training" for member in torment.members)

    def _all_in_one_entry(self, torment: Torment, height: int) -> bool:
        peers = {seen.peer for seen in torment.watch.seen.values()}
        for member in torment.members:
            rows = member.site.get(f"/v1/rounds?from={height}&limit=500") or []
            if not any(row["applied_at"] and {c["peer"] for c in row["contributors"]} >= peers for row in rows):
                return False
        return True

    def _progress(self, torment: Torment, now: float) -> None:
        seen = torment.watch.seen
        self.outcome.heights.append((round(now, 1), {name: one.height for name, one in seen.items()}))
        shown = "  ".join(f"{m.site.name} {self._line(torment, m)}" for m in torment.members)
        self.say(shown)

    def _line(self, torment: Torment, member: Tormented) -> str:
        one = torment.watch.seen[member.site.name]
        return f"{one.height} {one.state}{f' [{member.hurt}]' if member.hurt else ''}"

    def _note(self, torment: Torment) -> None:
        outcome = self.outcome
        outcome.faults, outcome.skipped = torment.done, torment.skipped
        outcome.violations += torment.violations
        for member in torment.members:
            site: NamespacedSite = member.site
            seen = torment.watch.seen[site.name]
            outcome.run_dirs[site.name] = site.run_dir
            outcome.peers[site.name] = seen.peer
            outcome.joins_repeated += member.joins_repeated
            outcome.wiped[site.name] = sorted(site.run_dir.parent.glob(f"{site.name}.wiped-*"))
            outcome.violations += [f"{site.name}: {text}" for text in seen.unexplained]
