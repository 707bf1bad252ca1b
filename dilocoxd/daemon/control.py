"""The commands of an operator: pause, resume, leave, snapshot now, log level. Implements api.interface.Control.

Nothing here waits: each command starts its effect and says what will happen. A pause does not outlive the daemon.
"""

import asyncio
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dilocoxd.answers.peers import Ping, Reach
from dilocoxd.answers.site import PROFILE_UNDER_WAY
from dilocoxd.daemon.chain.pauses import Pauses
from dilocoxd.daemon.chain.snapshots import SnapshotKeeper
from dilocoxd.daemon.peers.authorities import RunAuthorities
from dilocoxd.daemon.peers.dial_back import Ask, ask_peers
from dilocoxd.daemon.peers.members import Members
from dilocoxd.daemon.peers.visits import Visits
from dilocoxd.daemon.process.lifecycle import Lifecycle
from dilocoxd.daemon.recovery.adoption import Adoption
from dilocoxd.daemon.sampling import Sampler
from dilocoxd.daemon.site.interface import TrainingSite
from dilocoxd.errors import CommandRefused
from dilocoxd.ids import PeerId
from dilocoxd.ipc.profile_files import make_room
from dilocoxd.store.snapshots import INDEX_NAME
from dilocoxd.telemetry.catalogue import Level, LogLevelChanged, SitePaused, SiteResumed
from dilocoxd.telemetry.events import EventLog

OPERATOR: Final = "operator"


@dataclass(frozen=True, slots=True)
class ControlParts:
    """What the commands work with."""

    lifecycle: Lifecycle
    pauses: Pauses
    site: TrainingSite
    has_own_loop: bool
    """Somebody's own loop trains, not the trainers that dilocoxd starts."""
    run_directory: Path
    loaded_height: Callable[[], int | None]
    """Which state is loaded and takes part in rounds; None: none yet."""
    sampler: Sampler
    snapshots: SnapshotKeeper
    snapshot_directory: Path
    live_peers: Callable[[], list[PeerId]]
    fetch_bytes: Ask
    """A small resource of a peer."""
    visits: Visits
    members: Members
    adoption: Adoption
    authorities: RunAuthorities
    tell_others: Callable[[], None]
    """What we do has changed."""
    events: EventLog


class DaemonControl:
    """Commands for one daemon; called on its loop."""

    def __init__(self, parts: ControlParts, stop: Callable[[str], None]) -> None:
        self._parts = parts
        self._stop = stop

    def pause(self, reason: str) -> str:
        """The trainers stop at the next inner step; the shared state goes on following the others."""
        parts, lifecycle = self._parts, self._parts.lifecycle
        if lifecycle.state in ("leaving", "failed"):
            raise CommandRefused(f"the daemon is {lifecycle.state}; there is nothing to pause")
        if why := lifecycle.evicted or lifecycle.follows:
            raise CommandRefused(why)
        parts.pauses.hold(OPERATOR, reason)
        if lifecycle.is_paused:
            return f"the site is paused already; the reason is now: {reason}"
        lifecycle.is_paused = True
        parts.events.emit(SitePaused(reason=reason))
        parts.tell_others()
        return "the trainers stop at the next inner step; resume with `dilocoxd resume RUN_DIR`"

    def resume(self) -> str:
        """The trainers go on."""
        parts = self._parts
        if not parts.lifecycle.is_paused:
            raise CommandRefused(parts.lifecycle.evicted or parts.lifecycle.follows or "the site is not paused")
        parts.lifecycle.is_paused = False
        parts.pauses.release(OPERATOR)
        parts.events.emit(SiteResumed())
        parts.tell_others()
        return "the trainers go on"

    def leave(self) -> str:
        """Settle the round, say goodbye, end."""
        if self._parts.lifecycle.state == "leaving":
            raise CommandRefused("the daemon is leaving already")
        self._stop("asked for over the API")
        again = f"`dilocoxd run {shlex.quote(str(self._parts.run_directory))}`"
        return f"the daemon settles the round, writes its checkpoints and ends; start it again with {again}"

    def snapshot(self) -> str:
        """Write the shared state to disk as soon as the outer worker is free."""
        height = self._parts.loaded_height()
        if height is None:
            raise CommandRefused("the shared state is not loaded yet; try again later")
        if (self._parts.snapshot_directory / str(height) / INDEX_NAME).exists():
            return f"state {height} is on disk already"
        if not self._parts.snapshots.request(height):
            raise CommandRefused("another snapshot is about to be written; try again later")
        return f"state {height} is being written, unless the next entry overtakes it; see `dilocoxd snapshots`"

    async def profile(self, steps: int) -> str:
        """Record the next inner steps of all ranks."""
        parts = self._parts
        if parts.has_own_loop:
            raise CommandRefused("a loop of your own trains this run; use torch.profiler in that loop")
        if parts.lifecycle.is_paused:
            raise CommandRefused(
                "the site is paused, so there is no inner step to record; `dilocoxd resume` comes first"
            )
        status = parts.site.status()
        if status.profile.state in PROFILE_UNDER_WAY:
            raise CommandRefused(f"a profile is being recorded already ({status.profile.text}); wait for it")
        if parts.lifecycle.state != "training" or not status.is_training:
            reason = status.waiting_for or parts.lifecycle.waiting_for or f"the daemon is {parts.lifecycle.state}"
            raise CommandRefused(
                f"no trainer trains now ({reason}), so there is no inner step to record; try again later"
            )
        parts.site.profile(steps)
        await asyncio.to_thread(make_room, parts.run_directory)
        return "the next inner steps are recorded; see /v1/profile"

    async def sample(self, prompt: str) -> str:
        """The model of the newest snapshot continues a text, in a process of its own."""
        if self._parts.lifecycle.state in ("leaving", "failed"):
            raise CommandRefused(f"the daemon is {self._parts.lifecycle.state}; use `dilocoxd generate RUN_DIR`")
        return await self._parts.sampler.ask(prompt)

    async def reach(self) -> Reach:
        """What a peer finds when it tries to connect to the addresses that we announce."""
        return await ask_peers(self._parts.live_peers(), self._parts.fetch_bytes)

    async def ping(self, site: str) -> Ping:
        """How the other site of that name is reached, and how well."""
        return await self._parts.visits.ping(site)

    async def connect(self, address: str) -> str:
        """Ask at this address from now on."""
        return await self._parts.visits.connect(address)

    async def disconnect(self, site: str) -> str:
        """Close the connection to the other site of that name."""
        return await self._parts.visits.disconnect(site)

    def evict(self, revocation: str) -> str:
        """Settle a signed revocation, and tell the others."""
        return self._parts.members.evict(revocation)

    def vote_eviction(self, site: str) -> str:
        """Sign our vote to evict the member with this peer id, and tell the others."""
        return self._parts.members.vote_eviction(site)

    def adopt(self, target: str) -> str:
        """Take the branch with this head, or of this site, and stay on it."""
        return self._parts.adoption.adopt(target)

    def change_authorities(self, change: str) -> str:
        """Settle a signed change of the authorities, and tell the others."""
        return self._parts.authorities.change(change)

    def vote_authorities(self, terms: str) -> str:
        """Sign our vote for other authorities, and tell the others."""
        return self._parts.authorities.vote(terms)

    def set_log_level(self, level: Level) -> str:
        """Least severity of events on stderr or in the journal."""
        self._parts.events.level = level
        self._parts.events.emit(LogLevelChanged(least=level))
        return f"events of level {level} and above are shown"
