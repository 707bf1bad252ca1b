"""One site in the test's own loop, alone in its run: every contribution it offers is reduced, committed and applied.

Real LocalSite, real outer worker process, real or paced trainers. Committed payloads are kept, so that a second site
can replay them and must reach the same bits.
"""

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dilocoxd.config.manifest import manifest_from_tables
from dilocoxd.config.site import ParallelSection, SiteConfig, WorkersSection
from dilocoxd.daemon.site.interface import (
    SiteEvent,
    SiteSettings,
    StepReported,
)
from dilocoxd.daemon.site.site import LocalSite
from dilocoxd.daemon.workers.forked import PIPELINE_MODULE
from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.machines.phase.inputs import CommittedEntry
from dilocoxd.machines.phase.outputs import OfferContribution
from dilocoxd.machines.phase.settings import StartingPoint
from dilocoxd.telemetry.catalogue import PhaseClosed
from dilocoxd.wire.local import buffers as local_buffers, outer_worker as local
from tests.harness.outer_worker.first_fork_server import WarmForkServer, first_taken
from tests.harness.running.warm import fork_fork_server
from tests.integration.trainers.daemon_side import english_like_text, make_tables

WAIT_S = 180.0
PACED = "tests.integration.one_site.pace_trainer"
REAL = "dilocoxd.trainer.main"
REAL_PIPELINE = (REAL, PIPELINE_MODULE)
"""Of a site of several stages, as the daemon loads them (daemon/settings.py)."""


def make_run(folder: Path, *, stages: int = 1, **strategy: Any) -> SiteSettings:
    """A run directory with a tiny model, and settings for it with the paced trainer."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder.parent / "corpus.txt"
    corpus.write_text(english_like_text(), encoding="utf-8")
    tables = make_tables(corpus)
    tables["strategy"] = {**tables["strategy"], "codec": "fp32", **strategy}
    tables["outer"] = {"lr": 0.5, "momentum": 0.0}
    manifest = manifest_from_tables(tables, source="test")
    site = SiteConfig(parallel=ParallelSection(threads_per_rank=1, stages=stages), workers=WorkersSection(outer_nice=0))
    (folder / "run.toml").write_text(manifest.to_toml(), encoding="utf-8")
    (folder / "site.toml").write_text(site.to_toml(), encoding="utf-8")
    return SiteSettings(
        run_directory=folder,
        peer_id="QmTest",
        delay=manifest.strategy.delay,
        inner_steps=manifest.strategy.inner_steps,
        extend_steps_max=8,
        evaluate_every_rounds=0,
        num_stages=stages,
        trainer_modules=(PACED,),
        trainer_environment={"DILOCOXD_CACHE": str(folder.parent)},
        restarts_max=50,
    )


class World:
    """See the module."""

    def __init__(self, settings: SiteSettings) -> None:
        self.settings = settings
        self.events: list[SiteEvent] = []
        self.committed: list[tuple[CommittedEntry, bytes]] = []
        self.commits = asyncio.Semaphore(0)
        self.changed = asyncio.Event()
        self.offers: asyncio.Queue[OfferContribution] = asyncio.Queue()
        self.site = LocalSite(settings, self._on_event)
        self.state: local.StateReady | None = None
        self.bases_at_boundaries: list[int | None] = []
        self.is_committing = False
        self.has_twin = False
        """Each entry has a second contribution, with the payload of ours."""
        self.committer: asyncio.Task[None] | None = None
        self.on_commit: Callable[[str, int], None] = lambda _where, _round: None
        """Called at named moments of a round, to place a fault there."""

    def _on_event(self, event: SiteEvent) -> None:
        if isinstance(event, OfferContribution):
            self.offers.put_nowait(event)
        if isinstance(event, PhaseClosed):
            self.bases_at_boundaries.append(self.site.status().base_round)
        self.events.append(event)
        self.changed.set()

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until an event makes `condition` true."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not condition():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise AssertionError(f"never: {what}; {self.site.status()}\n{self.logs()}") from None

    def logs(self) -> str:
        parts = []
        for path in sorted((self.settings.run_directory / "logs").glob("*.log")):
            parts.append(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}")
        return "\n".join(parts)

    async def commit_for_ever(self) -> None:
        """The round machine of a run with one peer."""
        layout, lowrank_r = await self.site.ready(), self.settings.lowrank_r
        table = layout.payload_bytes[lowrank_r]
        round_index = self.state.round if self.state is not None else 0
        while True:
            self.is_committing = False
            self.changed.set()
            offer = await self.offers.get()
            self.is_committing = True
            shares = (local.Share(-1, offer.tokens),)
            if self.has_twin:
                shares = (*shares, local.Share(0, offer.tokens))
                own = self.site.buffers.read(local_buffers.OUTBOX, 0, self.site.buffers.size(local_buffers.OUTBOX))
                self.site.buffers.write(local_buffers.INBOX, 0, own)
            places = [(number, segment) for number, row in enumerate(table) for segment in range(len(row))]
            for number, segment in places:
                if number and not segment:
                    await self.site.prepare_pass(number, lowrank_r)
                await self.site.reduce(number, segment, shares, lowrank_r)
                self.on_commit("reduce", round_index)
            await self.site.prepare_pass(len(table), lowrank_r)
            payload = self.site.buffers.read(local_buffers.RESULT, 0, self.site.buffers.size(local_buffers.RESULT))
            owned = tuple(local.OwnedSegment(number, segment, shares) for number, segment in places)
            entry = CommittedEntry(
                RoundIndex(round_index), lowrank_r, self.settings.inner_steps, lowrank_r,
                settles=offer.phase, is_included=True, owned=owned,
            )  # fmt: skip
            self.on_commit("apply", round_index)
            self.state = await self.site.apply_entry(entry)
            self.committed.append((entry, payload))
            round_index += 1
            self.changed.set()

    async def replay(self) -> bytes:
        """Let no more entries commit; anchor hash after applying all committed payloads to genesis, from files."""
        self.site.pause("the test looks at the bits")
        await self.until(lambda: not self.is_committing, "the last entry")
        assert self.committer is not None
        self.committer.cancel()
        state = await self.site.load_state("")
        for entry, payload in self.committed:
            path = self.settings.run_directory / f"payload-{entry.round}"
            path.write_bytes(payload)
            plain = dataclasses.replace(entry, path=str(path), settles=None, is_included=False, owned=())
            state = await self.site.apply_entry(plain)
        return state.anchor_sha256

    @property
    def steps(self) -> list[StepReported]:
        return self.of(StepReported)

    @property
    def offered(self) -> list[PhaseId]:
        return [event.phase for event in self.of(OfferContribution)]


@contextlib.asynccontextmanager
async def running(settings: SiteSettings, *, is_cold: bool = False) -> AsyncIterator[World]:
    """A site that trains; at the end it leaves, and nothing of it stays.

    `is_cold`: its fork server is a program, as in a process or a network of its own; else the first one is a fork of
    what has its modules loaded, as those of daemons are.
    """
    world = World(settings)
    forked = contextlib.nullcontext() if is_cold else first_taken(_forked)
    with forked:
        async with _trained(world):
            yield world


def _forked(command: Sequence[str], environment: Mapping[str, str], stdin: int, output: int) -> WarmForkServer:
    return WarmForkServer(fork_fork_server(command, environment, stdin, output))


@contextlib.asynccontextmanager
async def _trained(world: World) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        main = group.create_task(world.site.run(), name="site")
        async with asyncio.timeout(WAIT_S):
            await world.site.ready()
            world.state = await world.site.load_state("")
            await world.site.begin(StartingPoint())
        world.committer = group.create_task(world.commit_for_ever(), name="commit")
        yield
        world.committer.cancel()
        async with asyncio.timeout(WAIT_S):
            await world.site.leave()
            await main


def kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
