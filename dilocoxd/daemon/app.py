"""The daemon process: what is started in which order, and the one list by which it stops.

Exit codes: 0 left cleanly, 1 failed, 78 the configuration must be changed, 130 second SIGINT.
"""

import asyncio
import contextlib
import faulthandler
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvloop

from dilocoxd import __version__
from dilocoxd.config.api import ApiSection
from dilocoxd.daemon.assembly import Daemon, MakeSite
from dilocoxd.daemon.chain.owed_work import tell_choice
from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.daemon.chain.promise_file import PromiseFile
from dilocoxd.daemon.chain.snapshots import usable_snapshots
from dilocoxd.daemon.control import DaemonControl
from dilocoxd.daemon.ending import end_of_run
from dilocoxd.daemon.narrator import narrate
from dilocoxd.daemon.observe.view import DaemonView
from dilocoxd.daemon.peers.losses import LossAsker, LossSources
from dilocoxd.daemon.peers.nearby import local_run, tells_lan
from dilocoxd.daemon.peers.outcast import OutcastParts, OutcastWatch
from dilocoxd.daemon.preparing import prepare
from dilocoxd.daemon.process.leaving import has_left
from dilocoxd.daemon.process.loop_faults import tell_faults
from dilocoxd.daemon.process.open_files import allow_open_files
from dilocoxd.daemon.process.open_run import Opened
from dilocoxd.daemon.process.service_manager import Address, ServiceManager
from dilocoxd.daemon.process.stop_signals import StopSignals
from dilocoxd.daemon.process.token import load_or_create_token
from dilocoxd.daemon.recovery.adoption import read_adopted
from dilocoxd.daemon.recovery.driver import finish_turn_back
from dilocoxd.daemon.round.driver import RoundDriver
from dilocoxd.daemon.round.roles import hold_if_observer
from dilocoxd.daemon.side_jobs import run_aside
from dilocoxd.daemon.site.site import LocalSite
from dilocoxd.daemon.starting import catch_up, meet_others
from dilocoxd.daemon.uploads.opening import payload_ways
from dilocoxd.daemon.workers.supervisor import keep_reaper, mark_this_process
from dilocoxd.errors import ConfigError, PeerError, StoreError, WorkerError
from dilocoxd.ids import Digest, PeerId
from dilocoxd.ipc.keep_alive import is_set_within
from dilocoxd.machines.round.inputs import LeaveRequested
from dilocoxd.store.branch_aside import Aside
from dilocoxd.store.kept_work import KeptWorkStore
from dilocoxd.store.log import EntryLog
from dilocoxd.store.rundir import RunDir, open_run_dir
from dilocoxd.store.snapshots import remove_leftovers
from dilocoxd.swarm.cancelling import end_all
from dilocoxd.swarm.discovery.identity import load_or_create
from dilocoxd.swarm.discovery.lan import tell
from dilocoxd.telemetry.catalogue import ApiStarted, ConfigLoaded, DaemonStarted, DaemonStopped
from dilocoxd.telemetry.events import EventLog, journal_of
from dilocoxd.wire.entry import genesis_hash

START_END_S: Final = 2.0
SETTLE_S: Final = 5.0
SITE_LEAVE_S: Final = 11.0
WORKERS_END_S: Final = 1.0
"""Together below the 20 s that a service manager gives us; the network says goodbye meanwhile."""
STOP_LIMIT_S: Final = 18.0
"""After this the process ends whatever still hangs: all that matters is on disk, and the reaper ends the workers."""
BLOCKED_LIMIT_S: Final = STOP_LIMIT_S + 1.0
"""The same when the loop itself hangs (stop_signals.py)."""
SIGNAL_S: Final = 0.5
"""Until a signal that a child of ours has had reaches us as well."""
EXIT_FAILED: Final = 1

ServeApi = Callable[[DaemonView, DaemonControl, ApiSection, str], AbstractAsyncContextManager[tuple[str, int]]]
"""api.server.serve_api: view, control, `[api]` of site.toml, bearer token; gives the address really bound."""


def run_daemon(run_dir: Path, serve_api: ServeApi | None = None, make_site: MakeSite = LocalSite) -> int:
    """Run the daemon of a run directory until it is told to stop; its exit code. Raises ConfigError (78)."""
    opened_dir = open_run_dir(run_dir)
    # Native code may abort without a word, as libuv does: the stacks tell where.
    faulthandler.enable(file=2)
    allow_open_files()
    with opened_dir.locked():
        return uvloop.run(_run(opened_dir, serve_api, make_site))


async def _run(run_dir: RunDir, serve_api: ServeApi | None, make_site: MakeSite) -> int:
    opened = _open(run_dir)
    tell_faults(asyncio.get_running_loop())
    mark = mark_this_process()
    try:
        log = await asyncio.to_thread(
            EntryLog, run_dir.log, opened.manifest.run_id,
            genesis_hash(opened.manifest.run_id, opened.manifest.sha256()),
        )  # fmt: skip
        tell = partial(tell_choice, opened.identity.peer_id, KeptWorkStore(run_dir.own_work), opened.events)
        adopted = read_adopted(run_dir.adopted)
        taken_back = await PromiseFile(run_dir.path).load_reverts()
        reverted = frozenset(Digest(message.entry_hash) for message in taken_back)
        await asyncio.to_thread(finish_turn_back, log, Aside(run_dir.aside), run_dir.snapshots, tell, adopted, reverted)
        await asyncio.to_thread(remove_leftovers, run_dir.snapshots)
        daemon = Daemon(opened, log, make_site)
        return await App(daemon, serve_api, mark).run()
    except (StoreError, WorkerError) as error:
        opened.events.emit(DaemonStopped(reason=str(error), exit_code=EXIT_FAILED))
        return EXIT_FAILED
    finally:
        opened.events.close()


def _open(run_dir: RunDir) -> Opened:
    manifest, config = run_dir.load()
    identity = load_or_create(run_dir.identity(config))
    events = EventLog(run_dir.events, level=config.log.level, journal=journal_of(sys.stderr, os.environ))
    events.emit(
        DaemonStarted(peer_id=identity.peer_id, run_id=manifest.run_id, version=__version__, run_dir=str(run_dir.path))
    )
    events.emit(ConfigLoaded(warnings=(*manifest.warnings(), *config.api.warnings())))
    return Opened(run_dir, manifest, config, identity, events)


class App:
    """Start list, supervision of the long-running parts, stop list."""

    def __init__(self, daemon: Daemon, serve_api: ServeApi | None, mark: str) -> None:
        self._daemon = daemon
        self._serve_api = serve_api
        self._mark = mark
        self._signals = StopSignals(self.stop, daemon.opened.run_dir.logs / "stacks.txt", BLOCKED_LIMIT_S)
        self._manager = ServiceManager(os.environ)
        self._stop = asyncio.Event()
        self._network_stop = asyncio.Event()
        self._reason = ""
        self._exit_code = 0

    async def run(self) -> int:
        """Until a signal, the end of the run, or a failure."""
        events = self._daemon.opened.events
        # The reaper outlives all else: it takes the end of its pipe for our death, and would kill p2pd at its goodbye.
        with self._signals:
            async with self._api() as address, asyncio.TaskGroup() as group:
                reaper = group.create_task(keep_reaper(self._mark), name="reaper")
                manager = group.create_task(self._tell_manager(address), name="service manager")
                lines = group.create_task(self._tell_terminal(), name="lines for the terminal")
                await self._run_parts()
                for task in (lines, manager, reaper):
                    task.cancel()
            events.emit(DaemonStopped(reason=self._reason, exit_code=self._exit_code))
        return self._exit_code

    async def _tell_manager(self, address: Address) -> None:
        daemon = self._daemon
        beats = {"the site's driver": daemon.site.beat, "the network's loop": daemon.swarm.beat}
        await self._manager.run(address, daemon.view.status, beats)

    async def _tell_terminal(self) -> None:
        """Also while the parts stop: who asked for the end is told what it waits for."""
        daemon = self._daemon
        await narrate(daemon.view.status, daemon.journal.newest_rounds, daemon.opened.events.say)

    async def _run_parts(self) -> None:
        daemon = self._daemon
        if self._stop.is_set():
            return  # told while the API began: a site that never ran would be waited for in vain
        async with asyncio.TaskGroup() as group:
            alerts = self._watched(group, daemon.alert_driver.run(), "alerts")
            texts = group.create_task(daemon.sampler.run(), name="texts")
            helpers: list[asyncio.Task[None]] = []
            site = self._watched(group, daemon.site.run(), "site")
            conductor = self._watched(group, self._start(group, helpers), "start")
            await self._stop.wait()
            alerts.cancel()  # what ends now, ends because it is to
            texts.cancel()  # its process would take the CPU that the checkpoints need
            await self._finish(conductor, site)
            for task in [*helpers, site]:
                task.cancel()
            daemon.lifecycle.enter("leaving", "the network to say goodbye")

    def stop(self, reason: str, exit_code: int = 0) -> None:
        """Begin the stop list, once."""
        if not self._stop.is_set():
            self._reason, self._exit_code = reason, exit_code
            self._stop.set()
            self._signals.begin()
            self._manager.stopping(reason)
            asyncio.get_running_loop().call_later(STOP_LIMIT_S, self._give_up)

    def _give_up(self) -> None:
        tasks = ", ".join(sorted(task.get_name() for task in asyncio.all_tasks() if not task.done()))
        self._note_stop_trouble(f"stopping took longer than {STOP_LIMIT_S:g} s; still there: {tasks[:400]}")
        self._daemon.opened.events.emit(DaemonStopped(reason=self._reason, exit_code=self._exit_code))
        self._daemon.opened.events.close()
        os._exit(self._exit_code)

    def _watched(self, group: asyncio.TaskGroup, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return group.create_task(self._watch(work, name), name=name)

    def _aside(self, group: asyncio.TaskGroup, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return group.create_task(run_aside(work, name, self._daemon.opened.events.say), name=name)

    async def _watch(self, work: Awaitable[None], name: str) -> None:
        """Run a part; when it fails for good the site leaves cleanly instead of vanishing.

        A Ctrl-C may end a child that has no session of its own yet before we hear of it ourselves."""
        try:
            await work
        except* (WorkerError, StoreError, ConfigError) as failures:
            await is_set_within(self._stop, SIGNAL_S)
            self._fail(name, failures)

    def _fail(self, name: str, failures: BaseExceptionGroup[Any]) -> None:
        if self._stop.is_set():
            return  # the stop list ends the parts in its own order; what they miss then is no news
        text = in_words(failures)
        self._daemon.alerts.alert(f"{name}_failed", text)
        is_config = failures.subgroup(ConfigError) is not None
        self.stop(f"{name}: {text}", ConfigError.exit_code if is_config else EXIT_FAILED)

    async def _watch_rounds(self, rounds: RoundDriver) -> None:
        """The round machine leaves by itself when our disk does not let it keep promises."""
        await rounds.left.wait()
        if not self._stop.is_set():
            self._daemon.alerts.alert("rounds_failed", rounds.left_why)
            self.stop(rounds.left_why, EXIT_FAILED)

    @contextlib.asynccontextmanager
    async def _api(self) -> AsyncIterator[Address]:
        api = self._daemon.opened.config.api
        if self._serve_api is None or api.port == 0:
            yield None
            return
        run_dir, events = self._daemon.opened.run_dir, self._daemon.opened.events
        token = load_or_create_token(run_dir.path / api.token_file)
        if api.warnings():
            self._daemon.alerts.alert("api_exposed", "; ".join(api.warnings()))
        control = DaemonControl(self._daemon.control_parts(), self.stop)
        async with self._serve_api(self._daemon.view, control, api, token) as (host, port):
            events.emit(ApiStarted(host=host, port=port))
            yield host, port

    async def _start(self, group: asyncio.TaskGroup, helpers: list[asyncio.Task[None]]) -> None:
        """The start list; each step says what it waits for."""
        daemon = self._daemon
        life = daemon.lifecycle
        life.enter("starting", "p2pd to start")
        daemon.members.expect_others()
        await daemon.swarm.start()
        self._watched(group, daemon.swarm.run(self._network_stop), "network")
        helpers.append(group.create_task(daemon.membership.run(), name="membership"))
        helpers.append(group.create_task(self._outcast_watch().run(), name="eviction"))
        hold_if_observer(daemon.swarm.doors.own, life, daemon.ledger.pauses)
        helpers.append(self._aside(group, daemon.outside_watch().run(), "public address"))
        helpers.append(self._aside(group, self._loss_asker().run(), "losses of other sites"))
        if tells_lan(daemon.opened.config.network.lan_announce):
            helpers.append(self._aside(group, tell(local_run(daemon.opened, daemon.swarm)), "local network"))
        life.enter("starting", "the outer worker to describe the model")
        layout = await daemon.site.ready()
        daemon.layout = layout
        payloads = PayloadMaps(layout.payload_bytes, layout.numel, layout.record_bytes, layout.center_start)
        life.enter("starting", f"the shared state to be loaded (log of {daemon.log.height} entries)")
        snapshots = await asyncio.to_thread(usable_snapshots, daemon.opened.run_dir.snapshots, daemon.log)
        may_fetch = bool(daemon.opened.config.network.bootstrap)  # who was told of nobody would begin again alone
        for problem in await daemon.ledger.open(payloads, snapshots, may_fetch=may_fetch):
            daemon.alerts.alert("snapshot_unusable", problem)
        daemon.members.follow_chain()
        await daemon.round_history.recall(daemon.log, daemon.opened.run_dir.events)
        transfers = await daemon.make_rounds(payloads)
        daemon.membership.report(is_old=True)
        network, identity = daemon.opened.config.network, daemon.opened.identity
        for name, work in payload_ways(daemon.site, daemon.arrivals, transfers, network, daemon.swarm, identity):
            helpers.append(group.create_task(work, name=name))
        assert daemon.rounds is not None
        helpers.append(self._watched(group, daemon.rounds.run(transfers), "rounds"))
        helpers.append(group.create_task(self._watch_rounds(daemon.rounds), name="end of rounds"))
        helpers.append(self._watched(group, daemon.recovery.run(), "recovery"))
        helpers.append(self._aside(group, daemon.adoption.run(daemon.rounds.tell), "adoption"))
        helpers.append(group.create_task(daemon.snapshots.run(daemon.site, daemon.log), name="snapshots"))
        life.enter("joining", "another peer of this run to answer")
        surroundings = daemon.surroundings()
        await meet_others(surroundings)
        life.enter("catching_up", "")
        await catch_up(surroundings)
        daemon.members.has_caught_up()
        life.enter("preparing")
        await daemon.site.begin(await daemon.work_keeper.starting_point(daemon.ledger))
        await prepare(life, self._trains, self._tell_others)
        self.stop(await end_of_run(daemon.ending()))

    def _loss_asker(self) -> LossAsker:
        daemon = self._daemon

        def contributed(peer: PeerId) -> int:
            record = daemon.table.record(peer)
            return record.contributed_round if record is not None else -1

        sources = LossSources(daemon.swarm.fetch_bytes, daemon.membership.live, contributed, daemon.offences.count)
        return LossAsker(daemon.journal, sources)

    def _outcast_watch(self) -> OutcastWatch:
        daemon = self._daemon
        swarm = daemon.swarm
        parts = OutcastParts(
            eviction=swarm.doors.own_eviction,
            shown_by=lambda: daemon.names.of(swarm.decisions.shown_by) if swarm.decisions.shown_by else "",
            in_touch=lambda: swarm.contacts.in_touch,
            halt_rounds=lambda is_out: daemon.rounds.halt(is_out) if daemon.rounds is not None else None,
            lifecycle=daemon.lifecycle,
            pauses=daemon.ledger.pauses,
            alerts=daemon.alerts,
            tell_others=self._tell_others,
        )
        return OutcastWatch(parts)

    def _trains(self) -> bool:
        """It does, or found that nothing can be trained from its state: it is prepared either way."""
        site = self._daemon.site.status()
        return site.is_training or site.is_spoiled

    def _tell_others(self) -> None:
        self._daemon.membership.report()
        self._daemon.swarm.announce()

    async def _finish(self, conductor: asyncio.Task[None], site: asyncio.Task[None]) -> None:
        """The stop list. Every step is bounded, and none is skipped because one before it failed."""
        daemon = self._daemon
        daemon.lifecycle.enter("leaving", "the round to be settled")
        await self._bounded(end_all([conductor]), START_END_S, "ending the start")
        if daemon.rounds is not None:
            daemon.rounds.tell(LeaveRequested())
            if not await has_left(daemon.rounds.left, site, SETTLE_S) and not site.done():
                self._note_stop_trouble(f"settling the round took longer than {SETTLE_S:g} s")
        daemon.lifecycle.is_gone = True
        self._network_stop.set()
        daemon.lifecycle.enter("leaving", "the workers to save checkpoints and error feedback")
        await self._bounded(daemon.site.leave(), SITE_LEAVE_S, "writing the checkpoints")
        daemon.lifecycle.enter("leaving", "the workers to end")
        await self._bounded(asyncio.wait([site]), WORKERS_END_S, "ending the workers")

    async def _bounded(self, step: Awaitable[Any], limit_s: float, what: str) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await step
        except TimeoutError:
            self._note_stop_trouble(f"{what} took longer than {limit_s:g} s")
        except (PeerError, WorkerError, StoreError) as error:
            self._note_stop_trouble(f"{what} failed: {error}")

    def _note_stop_trouble(self, text: str) -> None:
        self._daemon.alerts.alert("stop_list", text)


def in_words(group: BaseExceptionGroup[Any]) -> str:
    """What its errors say, each sentence once: all parts on one node end with the same."""
    return "; ".join(dict.fromkeys(str(error) for error in _leaves(group)))


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
