"""The story of the demo, step by step; each step waits for a fact that the sites show, and fails with a reason."""

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.demo import liar
from tests.demo.history import SiteHistory, Watcher
from tests.harness.running.run_directories import link_of
from tests.harness.running.sites import STOP_S, SiteProcess

POLL_S = 0.05
KILL_POLL_S = 0.005
TREE_EVERY_S = 2.0
START_TIMEOUT_S = 900.0
"""Against hangs alone: the first start of all fetches the text and unpacks it, by a slow link and on a busy machine."""
ROUND_TIMEOUT_S = 120.0
LEAVE_TIMEOUT_S = STOP_S
TREE_GONE_S = 60.0
ROUNDS_AFTER_RETURN = 4


class DemoFailedError(Exception):
    """A step did not happen; the message says which, and what the sites said last."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line chose."""

    num_sites: int
    rounds: int
    with_faults: bool
    preset: str
    out: Path
    settings: tuple[str, ...] = ()
    liar: str = ""
    """Key of tests/demo/liar.py: LIES; empty: nobody lies."""


@dataclass
class Facts:
    """What the story found out, for the report."""

    killed: dict[str, object] = field(default_factory=dict)
    exit_codes: dict[str, int] = field(default_factory=dict)
    leave_s: dict[str, float] = field(default_factory=dict)
    returned_at: float = 0.0
    contributions_before_return: float = 0.0
    liar: dict[str, Any] = field(default_factory=dict)
    """What became of the site that lied (tests/demo/liar.py)."""
    final: dict[str, dict[str, object]] = field(default_factory=dict)
    """Status of every site at the one moment when all stood at the same outer step."""


class Scenario:
    """Runs the story with sites A, B, C ... and, if the options name a lie, one more that tells it."""

    def __init__(
        self, options: Options, members: list[SiteProcess], watcher: Watcher, say: Callable[[str], None]
    ) -> None:
        self.options = options
        self.sites = members[: options.num_sites]
        self.liars = members[options.num_sites :]
        self.watcher = watcher
        self.say = say
        self.facts = Facts()
        self._expected_live: set[str] = set()

    def play(self) -> None:
        """The whole story. Raises DemoFailedError."""
        first, *others = self.sites
        self._start(first)
        if others:
            self._join(others[0], through=first)
        self._wait_all_contribute(self.sites[:2])
        if len(others) > 1:
            self._join(others[1], through=others[0])
            self._wait_all_contribute(self.sites)
        if self.options.with_faults and others:
            self._kill_during_exchange(first)
            self._others_go_on(first)
            self._return(first)
        for site in self.liars:
            liar.told(self, site)
        self._finish()

    def history(self, site: SiteProcess) -> SiteHistory:
        return self.watcher.histories[site.name]

    def height(self) -> int:
        """Highest outer step any live site has."""
        return max((self.watcher.histories[n].height for n in self._expected_live), default=0)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _start(self, site: SiteProcess) -> None:
        self.say(f"{site.name} starts a new run (first time: reads and tokenises the text)")
        self._launch(site, "start", self.options.preset, *self._settings())
        self.wait(lambda: bool(self.history(site).status.get("join_address")), f"{site.name} answers", START_TIMEOUT_S)
        self.wait(lambda: self.history(site).state == "training", f"{site.name} trains", START_TIMEOUT_S)

    def _join(self, site: SiteProcess, *, through: SiteProcess) -> None:
        link = link_of(through.run_dir, str(self.history(through).status["join_address"]))
        self.say(f"{site.name} joins by {through.name}'s link alone: {link}")
        self._launch(site, "join", link)
        self.wait(lambda: self.history(site).state == "training", f"{site.name} trains", START_TIMEOUT_S)
        self.say(f"{site.name} trains from outer step {self.history(site).height}")

    def _wait_all_contribute(self, sites: list[SiteProcess]) -> None:
        """Until one committed entry contains all of them, as every one of them tells."""
        wanted = {str(self.history(s).status.get("peer_id")) for s in sites}

        def together() -> bool:
            return all(
                any(wanted <= {c["peer"] for c in row["contributors"]} for row in self.history(s).rounds.values())
                for s in sites
            )

        names = " and ".join(s.name for s in sites)
        self.wait(together, f"an entry with contributions of {names}", ROUND_TIMEOUT_S)
        self.say(f"{names} contributed to one outer step together (outer step {self.height()})")

    def _kill_during_exchange(self, site: SiteProcess) -> None:
        self.say(f"waiting for an exchange of {site.name} to kill it in the middle")
        deadline = time.monotonic() + ROUND_TIMEOUT_S
        tree, listed_at = site.tree(), time.monotonic()
        while True:
            status = site.status()
            round_ = status.get("round") or {}
            if round_.get("state") == "exchanging":
                break
            if time.monotonic() > deadline:
                raise DemoFailedError(f"{site.name} showed no exchange within {ROUND_TIMEOUT_S:g} s\n{site.describe()}")
            if time.monotonic() > listed_at + TREE_EVERY_S:
                # Listing takes longer than an exchange of this small model: it must not lie between seeing and killing.
                tree, listed_at = site.tree(), time.monotonic()
            time.sleep(KILL_POLL_S)
        for process in tree:
            _kill(process)
        self._expected_live.discard(site.name)
        killed_at = time.time()
        assert site.process is not None
        site.process.wait(TREE_GONE_S)
        _, alive = psutil.wait_procs(tree, timeout=TREE_GONE_S)
        if alive:
            raise DemoFailedError(f"processes of {site.name} outlived SIGKILL: {[p.pid for p in alive]}")
        self.facts.killed = {
            "site": site.name,
            "at_unix": killed_at,
            "round": round_.get("round"),
            "attempt": round_.get("attempt"),
            "state": round_.get("state"),
            "was_coordinator": round_.get("coordinator") == status.get("peer_id"),
            "processes": len(tree),
        }
        self.say(f"killed all {len(tree)} processes of {site.name} during the exchange of round {round_.get('round')}")

    def _others_go_on(self, dead: SiteProcess) -> None:
        height = self.height()
        others = [s for s in self.sites if s is not dead]
        self.wait(
            lambda: all(self.history(s).height >= height + 3 for s in others),
            f"three more outer steps without {dead.name}",
            2 * ROUND_TIMEOUT_S,
        )
        names = " and ".join(s.name for s in others)
        self.say(f"{names} went on without {dead.name}: outer step {self.height()}")

    def _return(self, site: SiteProcess) -> None:
        history = self.history(site)
        old_height = history.height
        peer = str(history.status.get("peer_id"))
        self.facts.contributions_before_return = len(_contributed(history, peer))
        returned_at = self.facts.returned_at = time.time()
        self.say(f"{site.name} comes back with the outer step {old_height} it had on disk")
        history.status = {**history.status, "state": "starting"}
        self._launch(site, "run", str(site.run_dir))
        self.wait(lambda: history.state == "training", f"{site.name} has caught up and trains", START_TIMEOUT_S)
        self.say(f"{site.name} caught up at outer step {history.height}")

        def again() -> bool:
            return any(
                row["committed_at"] > returned_at and peer in {c["peer"] for c in row["contributors"]}
                for other in self.watcher.histories.values()
                for row in other.rounds.values()
            )

        self.wait(again, f"an entry with {site.name}'s contribution", ROUND_TIMEOUT_S)
        self.say(f"{site.name} contributes again")

    def _finish(self) -> None:
        target = self.options.rounds
        if self.facts.returned_at or self.facts.liar:
            target = max(target, self.height() + ROUNDS_AFTER_RETURN)
        self.say(f"training on until outer step {target}")
        self.wait(lambda: self.height() >= target, f"outer step {target}", target * ROUND_TIMEOUT_S / 2)
        self.wait(self.stand_alike, "all sites at one outer step with equal anchors", 2 * ROUND_TIMEOUT_S)
        for site in self.sites:
            self.watcher.refresh_history(site.name)
        # Those who leave last go on without the others for a moment: what counts is the state now.
        self.watcher.stop()
        self._expected_live.clear()
        self.say(f"all sites stand at outer step {next(iter(self.facts.final.values()))['height']} with equal bits")
        for site in reversed(self.sites):
            started = time.monotonic()
            try:
                self.facts.exit_codes[site.name] = site.stop(LEAVE_TIMEOUT_S)
            except subprocess.TimeoutExpired as error:
                told = f"{site.name} did not leave within {LEAVE_TIMEOUT_S:g} s of SIGTERM\n{site.describe()}"
                raise DemoFailedError(told) from error
            self.facts.leave_s[site.name] = round(time.monotonic() - started, 2)

    def stand_alike(self) -> bool:
        """True if the newest statuses of the honest sites agree; they are kept then."""
        statuses = {site.name: dict(self.history(site).status) for site in self.sites}
        names = ("height", "chain_head", "anchor_sha256", "state_digest")
        if len({tuple(s.get(n) for n in names) for s in statuses.values()}) != 1:
            return False
        self.facts.final = statuses
        return True

    # --- means --------------------------------------------------------------------------------------------------------

    def failed(self, what: str) -> DemoFailedError:
        """The error for a step that did not happen, with what the sites said last."""
        return DemoFailedError("\n".join([what, *(s.describe() for s in self.sites if s.name in self._expected_live)]))

    @staticmethod
    def local_options(site: SiteProcess) -> tuple[str, ...]:
        """What every site of the demo is started with: its folder and name, loopback, two stages."""
        return (
            *("--dir", str(site.run_dir), "--name", site.name, "--host", "127.0.0.1", "--port", "0"),
            *("--api-port", str(site.port), "--stages", "2", "--set", "parallel.threads_per_rank=1"),
        )

    def _settings(self) -> list[str]:
        return [part for setting in self.options.settings for part in ("--set", setting)]

    def _launch(self, site: SiteProcess, command: str, *arguments: str) -> None:
        local = () if command == "run" else self.local_options(site)
        site.start(command, *arguments, *local)
        self._expected_live.add(site.name)

    def wait(self, condition: Callable[[], object], what: str, timeout_s: float) -> None:
        """Until `condition`. Raises DemoFailedError when it takes too long, or an honest site has ended."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            for site in self.sites:
                process = site.process
                if site.name in self._expected_live and process is not None and process.poll() is not None:
                    raise DemoFailedError(f"{site.name} ended with {process.poll()}\n{site.describe()}")
            if time.monotonic() > deadline:
                raise self.failed(f"not within {timeout_s:g} s: {what}")
            time.sleep(POLL_S)


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def _contributed(history: SiteHistory, peer: str) -> list[int]:
    return [k for k, row in history.rounds.items() if peer in {c["peer"] for c in row["contributors"]}]
