"""Turns SiteSettings into the settings of the machine and of the workers: modules, environment, logs, budgets."""

import os
import sys
import tempfile
import time
from pathlib import Path

from dilocoxd.daemon.head.place import AWAY_MODULE, BroughtFiles
from dilocoxd.daemon.head.stage import AWAY_STAGE_MODULE
from dilocoxd.daemon.site.interface import SiteSettings
from dilocoxd.daemon.site.nodes import SiteNodes, parts_of
from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.daemon.workers.fork_server import ForkServerSettings
from dilocoxd.daemon.workers.forked import ForkLaunch, WorkerPlace
from dilocoxd.daemon.workers.machine_files import PartsMachine
from dilocoxd.daemon.workers.outer_pool import OuterPool
from dilocoxd.daemon.workers.outer_worker import OuterListener, OuterSettings, OuterWorker
from dilocoxd.daemon.workers.ranks import ADDRESS
from dilocoxd.daemon.workers.supervisor import Launch
from dilocoxd.daemon.workers.trainers import Trainer, TrainerListener, TrainerSettings
from dilocoxd.daemon.workers.visitor import VisitingTrainer
from dilocoxd.ipc.client import (
    GENERATION_VARIABLE,
    PART_VARIABLE,
    PEER_VARIABLE,
    RUN_DIRECTORY_VARIABLE,
    SOCKET_VARIABLE,
)
from dilocoxd.ipc.keep_alive import RestartBudget
from dilocoxd.ipc.socket_folder import PREFIX, has_room, short_parent
from dilocoxd.machines.phase.settings import PhaseSettings
from dilocoxd.store.kept_work import work_directory
from dilocoxd.store.rundir import RunDir
from dilocoxd.wire.placement import WHOLE, OuterPart

FORK_SERVER_COMMAND = (sys.executable, "-m", "dilocoxd.ipc.fork_server")
FORK_SERVER_ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
"""Libraries that start their threads when they are loaded must not: a fork takes one thread along. Workers set the
number of their own threads themselves."""
SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
SPINS = "1000"
"""Turns that a thread of a worker waits for its fellows before it sleeps: 50 us. GNU's OpenMP takes 300,000 where there
are no more threads than cores. Where other processes want the cores too, and be it a second site, nearly all time goes
into that: 10 steps of a small model took over a minute there, and 0.6 s with this."""


def socket_place(run_directory: Path) -> tuple[Path, Path | None]:
    """Where the workers find us, and the directory made for that alone because the run's has too long a name."""
    name = "sock"
    if has_room(run_directory, len(name)):
        return run_directory / name, None
    private = Path(tempfile.mkdtemp(prefix=PREFIX, dir=short_parent(len(name))))
    return private / name, private


def phase_settings(settings: SiteSettings) -> PhaseSettings:
    """Settings of the phase machine; own files lie in `site/` of the run directory."""
    own = settings.run_directory / "site"
    return PhaseSettings(
        delay=settings.delay,
        inner_steps=settings.inner_steps,
        site_steps_min=settings.site_steps_min,
        extend_steps_max=settings.extend_steps_max,
        evaluate_every_rounds=settings.evaluate_every_rounds,
        without_one_every=settings.without_one_every,
        lowrank_r=settings.lowrank_r,
        save_every_rounds=settings.save_feedback_every_rounds,
        checkpoint_directory=str(own / "trainer"),
        feedback_path=str(RunDir(settings.run_directory).feedback),
        own_work_directory=str(work_directory(settings.run_directory)),
        start_timeout_s=settings.trainer_start_timeout_s,
        silence_factor=settings.trainer_silence_factor,
        silence_min_s=settings.trainer_silence_min_s,
        volumes=settings.volumes,
    )


def _environment(settings: SiteSettings, socket_path: Path, generation: int) -> dict[str, str]:
    named = {PEER_VARIABLE: settings.peer_id} if settings.peer_id else {}
    return {
        **named,
        SOCKET_VARIABLE: str(socket_path),
        GENERATION_VARIABLE: str(generation),
        RUN_DIRECTORY_VARIABLE: str(settings.run_directory),
    }


def _header(settings: SiteSettings, role: str, generation: int) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {role} generation {generation} of {settings.peer_id or 'this site'}"


def _budget(settings: SiteSettings) -> RestartBudget:
    return RestartBudget(settings.restarts_max, settings.restart_window_s)


def fork_server_environment() -> dict[str, str]:
    """What the fork server has besides our own environment; how its forks wait for each other may be set there."""
    chosen = any(name in os.environ for name in SPIN_VARIABLES)
    return FORK_SERVER_ENVIRONMENT if chosen else {**FORK_SERVER_ENVIRONMENT, SPIN_VARIABLES[0]: SPINS}


def fork_server_settings(settings: SiteSettings, mark: str) -> ForkServerSettings:
    """How the fork server is started, and what it loads. The site's folder in its command is for readers of `ps`."""

    def launch(generation: int) -> Launch:
        command = (*FORK_SERVER_COMMAND, str(settings.run_directory))
        log = settings.run_directory / "logs" / "fork-server.log"
        header = _header(settings, "fork server", generation)
        return Launch(command, fork_server_environment(), log, f"{mark}/fork-server-{generation}", header)

    modules = [settings.outer_module, *([AWAY_MODULE] if settings.node_parts else [])]
    if settings.is_training:
        modules += [*settings.trainer_modules, *([AWAY_STAGE_MODULE] if settings.node_stages else [])]
    return ForkServerSettings(launch, tuple(modules), _budget(settings), settings.trainer_start_timeout_s)


def make_outer(
    settings: SiteSettings,
    mark: str,
    socket_path: Path,
    buffers: Buffers,
    listener: OuterListener,
    nodes: SiteNodes,
) -> OuterWorker | OuterPool:
    """The outer worker of this site: one process, or several that hold a part each, the last ones on nodes."""
    here, away, fork_server = settings.outer_parts, settings.node_parts, nodes.fork_server
    if here + away == 1:
        return OuterWorker(outer_settings(settings, mark, socket_path), fork_server, buffers, listener)
    each = [outer_settings(settings, mark, socket_path, part) for part in parts_of(here, away)]
    places: list[WorkerPlace] = [fork_server] * here
    if not away:
        return OuterPool(each, places, buffers, listener)
    machines = [PartsMachine(here), *(PartsMachine(1, BroughtFiles()) for _ in range(away))]
    return OuterPool(each, [*places, *nodes.parts], buffers, listener, machines)


def outer_settings(settings: SiteSettings, mark: str, socket_path: Path, part: OuterPart = WHOLE) -> OuterSettings:
    """How the outer worker is started, or one part of it. All parts write to one log."""
    environment = dict(settings.outer_environment)
    name, role = "outer", "outer"
    if not part.is_whole:
        environment[PART_VARIABLE] = str(part)
        name, role = f"outer-part{part.index}", f"outer part {part.index}"

    def launch(generation: int) -> ForkLaunch:
        log = settings.run_directory / "logs" / "outer.log"
        added = {**environment, **_environment(settings, socket_path, generation)}
        header = _header(settings, role, generation)
        return ForkLaunch(settings.outer_module, (added,), log, f"{mark}/{name}-{generation}", header)

    return OuterSettings(launch, _budget(settings), settings.outer_start_timeout_s, settings.outer_silence_max_s)


def make_trainer(
    settings: SiteSettings,
    mark: str,
    socket_path: Path,
    buffers: Buffers,
    listener: TrainerListener,
    nodes: SiteNodes,
) -> Trainer:
    """The trainers of this site: forked here, or somebody's own loop that comes to the socket."""
    kind = Trainer if settings.trainer_modules else VisitingTrainer
    return kind(trainer_settings(settings, mark, socket_path, nodes), nodes.fork_server, buffers, listener)


def trainer_settings(settings: SiteSettings, mark: str, socket_path: Path, nodes: SiteNodes) -> TrainerSettings:
    """How a generation of trainers is started; its log is the output of all ranks."""

    def launch(generation: int) -> ForkLaunch:
        environment = {**settings.trainer_environment, **_environment(settings, socket_path, generation)}
        log = settings.run_directory / "logs" / f"trainer-{generation}.log"
        header = _header(settings, "trainer", generation)
        return ForkLaunch(settings.trainer_modules[0], (environment,), log, f"{mark}/trainer-{generation}", header)

    return TrainerSettings(
        launch,
        _budget(settings),
        settings.num_stages,
        settings.run_directory,
        settings.trainer_start_timeout_s,
        settings.node_address[0] if nodes.stages else ADDRESS,
        nodes.stage_places,
    )
