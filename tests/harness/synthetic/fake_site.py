"""A site without workers: real shared buffers, deterministic arithmetic on bytes, contributions on a timer.

For tests of the drivers over a real network, where models and tensors would only cost time. The state is a hash chain
over the applied payloads, so two sites have the same digest exactly when they applied the same bytes in the same order.
"""

import asyncio
import hashlib
import itertools
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dilocoxd.answers.site import ProfileStatus
from dilocoxd.daemon.process.loop_watch import watch_loop_lag
from dilocoxd.daemon.site.interface import (
    SiteEvent,
    SiteLayout,
    SiteSettings,
    SiteStatus,
)
from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.daemon.workers.outer_worker import RequestRefused
from dilocoxd.ids import Digest, PhaseId, RoundIndex
from dilocoxd.machines.phase.inputs import CommittedEntry
from dilocoxd.machines.phase.outputs import OfferContribution
from dilocoxd.machines.phase.settings import StartingPoint
from dilocoxd.store.audits import read_case, share_name
from dilocoxd.telemetry.catalogue import PhaseClosed
from dilocoxd.wire.local.buffers import INBOX, OUTBOX, RESULT, Buffer
from dilocoxd.wire.local.outer_worker import (
    ContributionFormed,
    PassReady,
    ReducedAgain,
    SegmentReduced,
    Share,
    SnapshotSaved,
    StateReady,
)

SHORT = int(os.environ.get("FAKE_SEGMENT_BYTES", "100"))
LENGTHS = (SHORT,) * int(os.environ.get("FAKE_SEGMENTS", "0")) or (3000, 1000)
TOTAL = sum(LENGTHS)
HOLD_LOOK_S = 0.05
SLOTS = int(os.environ.get("FAKE_SLOTS", "8"))
HOLD = "hold-apply"
"""A file of this name in the run directory keeps entries from being applied, like an outer worker without CPU."""
TURN = "turn-bit"
"""With a file of this name there one bit of the state turns over at the next entry, as in bad memory; the file goes."""
STOOD_STILL = "stood-still"
"""This file gets a line each time that the daemon's loop came back late by more than LATE_S: unix time, and by how many
seconds. The real site has an event for it."""
LATE_S = 1.0
GENESIS = Digest(hashlib.sha256(b"fake genesis").digest())


class FakeSite:
    """Implements daemon.site_interface.Site."""

    def __init__(self, settings: SiteSettings, emit: Callable[[SiteEvent], None]) -> None:
        self._emit = emit
        self._is_over = asyncio.Event()
        self.num_beats = 0
        self._rng = random.Random(str(settings.run_directory))
        self._hold = settings.run_directory / HOLD
        self._stood_still = settings.run_directory / STOOD_STILL
        self._turn = settings.run_directory / TURN
        self.buffers = Buffers()
        self.buffers.provide([Buffer(OUTBOX, TOTAL), Buffer(RESULT, TOTAL), Buffer(INBOX, SLOTS * TOTAL)])
        self._inner_steps = settings.inner_steps
        self._round = RoundIndex(0)
        self._digest = GENESIS
        self._phase = PhaseId(settings.run_directory.stat().st_ino % 1000)
        self._in_flight: PhaseId | None = None
        self._has_begun = self._is_paused = False
        self.phase_s = float(os.environ.get("FAKE_PHASE_S", "2.0"))
        self.shown_profile = ProfileStatus()
        self.moved_work: list[tuple[PhaseId, bool]] = []
        self.snapshots: dict[str, tuple[RoundIndex, Digest]] = {}

    def __del__(self) -> None:
        self.buffers.close()  # a process makes hundreds of sites, and may have 1,024 files open

    async def run(self) -> None:
        watch = asyncio.create_task(watch_loop_lag(self._note_lag, lag_max_s=LATE_S))
        try:
            await self._is_over.wait()
        finally:
            watch.cancel()

    def _note_lag(self, seconds: float, doing: str) -> None:
        with self._stood_still.open("a") as file:
            file.write(f"{time.time():.3f} {seconds:.3f}\n")

    async def ready(self) -> SiteLayout:
        return SiteLayout(numel=TOTAL, payload_bytes={0: (LENGTHS,)}, inbox_slots=SLOTS)

    def _state(self) -> StateReady:
        return StateReady(0, True, self._round, self._digest, self._digest, 0.0, next_inner_steps=self._inner_steps)

    async def load_state(
        self, directory: str, *, settles: PhaseId | None = None, is_included: bool = False, forgets: bool = False
    ) -> StateReady:
        self._round, self._digest = self.snapshots[directory] if directory else (RoundIndex(0), GENESIS)
        self._settle(settles)
        return self._state()

    async def apply_entry(self, committed: CommittedEntry) -> StateReady:
        while self._hold.exists():
            await asyncio.sleep(HOLD_LOOK_S)
        assert committed.round == self._round
        if committed.path:
            with open(committed.path, "rb") as file:  # noqa: PTH123
                file.seek(committed.offset)
                payload = file.read(TOTAL)
        else:
            payload = self.buffers.read(RESULT, 0, TOTAL)
        self._digest = Digest(hashlib.sha256(self._digest + payload).digest())
        if self._turn.exists():
            self._turn.unlink()
            self._digest = Digest(bytes([self._digest[0] ^ 1]) + self._digest[1:])
        self._round = RoundIndex(committed.round + 1)
        self._settle(committed.settles)
        return self._state()

    def _settle(self, phase: PhaseId | None) -> None:
        if phase is not None and phase == self._in_flight:
            self._in_flight = None
            self._offer_soon()

    async def abandon_contribution(self, phase: PhaseId, *, is_voted: bool) -> None:
        self._settle(phase)

    async def move_work(self, phase: PhaseId, *, is_withdrawn: bool) -> bool:
        self.moved_work.append((phase, is_withdrawn))
        return True

    async def begin(self, start: StartingPoint) -> None:
        self._has_begun = True
        self._phase = PhaseId(max(self._phase, *(phase + 1 for phase in start.own_phases), 0))
        self._offer_soon()

    @property
    def _is_training(self) -> bool:
        """As the machine of phases has it: a pause that was ordered before the beginning holds."""
        return self._has_begun and not self._is_paused

    def _offer_soon(self) -> None:
        if self._is_training:
            asyncio.get_running_loop().call_later(self.phase_s, self._offer)

    def _offer(self) -> None:
        if self._is_over.is_set() or self._in_flight is not None or not self._is_training:
            return
        self._phase = PhaseId(self._phase + 1)
        self._in_flight = self._phase
        payload = self._rng.randbytes(TOTAL)
        self.buffers.write(OUTBOX, 0, payload)
        ends = itertools.accumulate(LENGTHS)
        hashes = tuple(hashlib.sha256(payload[e - n : e]).digest() for e, n in zip(ends, LENGTHS, strict=True))
        formed = ContributionFormed(0, self._phase, True, "", hashes, norm=1.0, residual_norm=0.0, seconds=0.0)
        loss = 2.0 + self._rng.random() + 4.0 / (1 + self._round)
        self._emit(PhaseClosed(phase=self._phase, inner_steps=1, tokens=10, mean_loss=loss, global_step=self._phase))
        self._emit(OfferContribution(self._phase, self._round, 1, 10, 0, formed))

    def pause(self, reason: str) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._offer_soon()

    def profile(self, steps: int) -> None:
        """Never ends by itself."""
        self.shown_profile = ProfileStatus(state="waiting", steps=steps, text="waiting for the next inner step")

    def beat(self) -> int:
        self.num_beats += 1
        return self.num_beats

    def others_due(self, at: float | None, step_seconds: tuple[float, ...] = ()) -> None:
        """It offers by the clock, whatever the others do."""

    async def reduce(
        self, pass_index: int, segment: int, shares: tuple[Share, ...], lowrank_r: int, *, timeout_s: float = 120.0
    ) -> SegmentReduced:
        start, length = sum(LENGTHS[:segment]), LENGTHS[segment]
        total = bytearray(length)
        for share in shares:
            name, base = (OUTBOX, 0) if share.slot < 0 else (INBOX, share.slot * TOTAL)
            for index, value in enumerate(self.buffers.read(name, base + start, length)):
                total[index] = (total[index] + value * share.tokens) % 256
        self.buffers.write(RESULT, start, total)
        return SegmentReduced(0, pass_index, segment, hashlib.sha256(total).digest(), 0.0)

    async def reduce_again(self, directory: str, *, timeout_s: float = 60.0) -> ReducedAgain:
        folder = Path(directory)
        case = read_case(folder)
        total = bytearray(LENGTHS[case.segment])
        for place, named in enumerate(case.entry.contributions):
            for index, value in enumerate((folder / share_name(place)).read_bytes()):
                total[index] = (total[index] + value * named.tokens) % 256
        return ReducedAgain(0, hashlib.sha256(total).digest(), 0.0)

    async def prepare_pass(self, pass_index: int, lowrank_r: int, *, timeout_s: float = 120.0) -> PassReady:
        assert pass_index == 1, "one pass only"
        return PassReady(0, pass_index, ())

    async def write_snapshot(self, directory: str, *, timeout_s: float = 600.0) -> SnapshotSaved:
        raise RequestRefused("store", "a site without workers writes no snapshot")

    async def leave(self) -> None:
        self._is_over.set()

    def status(self) -> SiteStatus:
        nothing: dict[str, Any] = {}
        return SiteStatus(
            "", self._is_training, self._phase, 0, 0, 0, self._round, 0.0, 0.0, 0.0, 0, self._in_flight,
            self._round, self._digest, self._digest, nothing, profile=self.shown_profile,
        )  # fmt: skip
