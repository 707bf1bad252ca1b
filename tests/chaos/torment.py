"""Carries out faults at real sites, and undoes them when they are due. It remembers what it did, for the judgement."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from tests.chaos.plan import Fault
from tests.chaos.watch import Watch
from tests.harness.running.network_namespaces import PORT, NamespacedSite, Network
from tests.harness.running.run_directories import link_of

TREE_GONE_S = 60.0
WHOLE_LEFT_MIN = 2
"""Sites that must be undisturbed and training when another one is wiped: one of them may have all that is left."""


def command_of(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"{process.status()} {' '.join(process.cmdline()) or process.name()}"[:200]
    except psutil.Error:
        return "gone"


@dataclass
class Tormented:
    """One site during the soak."""

    site: NamespacedSite
    hurt: str = ""
    """Kind of the fault it suffers now."""
    undo_at: float = 0.0
    undo: Callable[[], None] | None = None
    is_joining: bool = False
    """The running command is `join`, which gives up when nobody answers; then it is repeated, as people would."""
    is_expected_down: bool = False
    starts: int = 0
    joins_repeated: int = 0
    wipes: int = 0
    former_peers: list[str] = field(default_factory=list)
    """Identities that a wipe ended."""


class Torment:
    """Faults in, processes and packets out. `violations`: what must not happen whatever the fault."""

    def __init__(self, network: Network, sites: list[NamespacedSite], watch: Watch, say: Callable[[str], None]) -> None:
        self.network = network
        self.members = [Tormented(site) for site in sites]
        self.watch = watch
        self.say = say
        self.done: list[dict[str, object]] = []
        self.skipped = 0
        self.violations: list[str] = []
        self.site_options: list[str] = []
        self._started = time.monotonic()

    # --- starting ---

    def start(self, member: Tormented, *command: str) -> None:
        """Start the site's daemon with this command line."""
        member.starts += 1
        member.is_expected_down = False
        member.is_joining = command[0] == "join"
        member.site.start(*command)

    def restart(self, member: Tormented) -> None:
        """`dilocoxd run`, as a service manager would."""
        self.start(member, "run", str(member.site.run_dir))

    def join(self, member: Tormented) -> None:
        """`dilocoxd join` with the addresses of all the others."""
        self.start(member, "join", *self.addresses(member), *member.site.options(), *self.site_options)

    def addresses(self, member: Tormented) -> list[str]:
        """Links of the other sites that have ever answered."""
        found = []
        for other in self.members:
            peer = self.watch.seen[other.site.name].peer
            if other is not member and peer:
                address = f"/ip4/{self.network.address(other.site.name)}/tcp/{PORT}/p2p/{peer}"
                found.append(link_of(other.site.run_dir, address))
        return found

    # --- watching ---

    def look_after(self) -> None:
        """Undo what is due; repeat joins that gave up; note daemons that ended by themselves."""
        now = time.monotonic()
        for member in self.members:
            if member.undo is not None and now >= member.undo_at:
                self.undo(member)
            process = member.site.process
            if member.is_expected_down or process is None or process.poll() is None:
                continue
            if member.is_joining and process.returncode == 1 and not (member.site.run_dir / "log").exists():
                member.joins_repeated += 1
                self.join(member)
                continue
            tail = member.site.log_path.read_text(errors="replace")[-1500:]
            self.violations.append(f"{member.site.name} ended by itself with {process.returncode}: {tail}")
            self.restart(member)

    def undo(self, member: Tormented) -> None:
        """End the fault that the site suffers now."""
        undo, member.undo, member.hurt = member.undo, None, ""
        if undo is not None:
            undo()

    def undo_all(self) -> None:
        """The end of all faults."""
        for member in self.members:
            self.undo(member)

    # --- faults ---

    def inflict(self, fault: Fault) -> None:
        """Do it to the intended site, or to the next one that can take it; else it is skipped."""
        for offset in range(len(self.members)):
            member = self.members[(fault.site + offset) % len(self.members)]
            if self._can_take(member, fault):
                break
        else:
            self.skipped += 1
            return
        told = {"at_s": round(time.monotonic() - self._started, 1), "kind": fault.kind, "site": member.site.name}
        told |= {"seconds": round(fault.seconds, 1), "unix": time.time()}
        seen = self.watch.seen[member.site.name]
        round_ = seen.status.get("round") or {}
        told |= {"height": seen.height, "round_state": round_.get("state"), "worker": ""}
        if fault.kind == "kill_worker":
            told["worker"] = fault.worker
        self.done.append(told)
        what = f"{fault.kind} {told['worker']}".strip()
        self.say(f"{what} {member.site.name} ({fault.seconds:.0f} s) at height {seen.height}, {round_.get('state')}")
        self._carry_out(member, fault)

    def _can_take(self, member: Tormented, fault: Fault) -> bool:
        whole = [m for m in self.members if self._is_whole(m)]
        others = [m for m in whole if m is not member]
        if member.hurt or member.is_expected_down:
            return False
        if fault.kind == "wipe":
            return member in whole and len(others) >= WHOLE_LEFT_MIN
        if fault.kind == "kill_worker":
            return member in whole
        return len(others) >= 1 and self.watch.seen[member.site.name].is_answering

    def _is_whole(self, member: Tormented) -> bool:
        return not member.hurt and self.watch.seen[member.site.name].state == "training"

    def _carry_out(self, member: Tormented, fault: Fault) -> None:
        network, name = self.network, member.site.name
        undo: Callable[[], None] | None = None
        if fault.kind == "kill_worker":
            self._kill_worker(member, fault.worker)
        elif fault.kind in ("kill_site", "kill_daemon", "wipe"):
            self._kill(member, is_daemon_alone=fault.kind == "kill_daemon")
            if fault.kind == "wipe":
                self._wipe(member)
                undo = lambda: self.join(member)  # noqa: E731
            else:
                undo = lambda: self.restart(member)  # noqa: E731
        elif fault.kind == "freeze":
            self._signal(member, signal.SIGSTOP)
            undo = lambda: self._signal(member, signal.SIGCONT)  # noqa: E731
        elif fault.kind == "unplug":
            network.unplug(name)
            undo = lambda: network.plug(name)  # noqa: E731
        else:
            other = self.members[(self.members.index(member) + max(1, fault.other)) % len(self.members)]
            is_pair = fault.kind == "cut_pair" and other is not member
            network.cut(name, [other.site.name] if is_pair else [])
            undo = lambda: network.heal(name)  # noqa: E731
        if undo is not None:
            member.hurt, member.undo = fault.kind, undo
            member.undo_at = time.monotonic() + fault.seconds

    def _signal(self, member: Tormented, number: signal.Signals) -> None:
        for pid in self.network.pids(member.site.name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _kill_worker(self, member: Tormented, worker: str) -> None:
        found = (self.watch.seen[member.site.name].status.get("workers") or {}).get(worker) or {}
        pids = found.get("pids") or [found.get("pid")]
        alive = set(self.network.pids(member.site.name))
        if pids[-1] in alive:  # ids may have been used again by others since the status was read
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[-1], signal.SIGKILL)

    def _kill(self, member: Tormented, *, is_daemon_alone: bool) -> None:
        site = member.site
        member.is_expected_down = True
        assert site.process is not None
        if is_daemon_alone:
            site.process.kill()
        else:
            self._signal(member, signal.SIGKILL)
        site.process.wait(TREE_GONE_S)
        if left := self.outliving(member):
            self.violations.append(f"{site.name}: {left} outlived their daemon by {TREE_GONE_S:g} s")
            self._signal(member, signal.SIGKILL)

    def outliving(self, member: Tormented) -> list[str]:
        """Commands of the processes that are still there a while after their daemon ended."""
        deadline = time.monotonic() + TREE_GONE_S
        while left := self.network.pids(member.site.name):
            if time.monotonic() > deadline:
                return [command_of(pid) for pid in left]
            time.sleep(0.05)
        return []

    def _wipe(self, member: Tormented) -> None:
        """The disk is lost; what was on it is kept aside for the judgement."""
        member.wipes += 1
        member.former_peers.append(self.watch.seen[member.site.name].peer)
        member.site.run_dir.rename(member.site.run_dir.with_name(f"{member.site.name}.wiped-{member.wipes}"))
