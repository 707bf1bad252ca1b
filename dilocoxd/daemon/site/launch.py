"""Turns SiteSettings into the settings of the machine and of the workers: commands, environment, logs, budgets."""

import sys
import time
from pathlib import Path

from dilocoxd.daemon.outer_worker import OuterSettings
from dilocoxd.daemon.site_interface import SiteSettings
from dilocoxd.daemon.supervisor import Launch, RestartBudget
from dilocoxd.daemon.trainer import TrainerSettings, torchrun_command
from dilocoxd.ipc.client import GENERATION_VARIABLE, SOCKET_VARIABLE
from dilocoxd.rounds.phase_events import PhaseSettings

RUN_DIRECTORY_VARIABLE = "DILOCOXD_RUN_DIR"
PEER_VARIABLE = "DILOCOXD_PEER"
OUTER_COMMAND = (sys.executable, "-m", "dilocoxd.outerworker.main")


def phase_settings(settings: SiteSettings) -> PhaseSettings:
    """Settings of the phase machine; own files lie in `site/` of the run directory."""
    own = settings.run_directory / "site"
    return PhaseSettings(
        delay=settings.delay,
        inner_steps=settings.inner_steps,
        site_steps_min=settings.site_steps_min,
        extend_steps_max=settings.extend_steps_max,
        evaluate_every_rounds=settings.evaluate_every_rounds,
        lowrank_r=settings.lowrank_r,
        save_every_rounds=settings.save_feedback_every_rounds,
        checkpoint_directory=str(own / "trainer"),
        feedback_path=str(own / "feedback.safetensors"),
        own_work_directory=str(own / "work"),
        start_timeout_s=settings.trainer_start_timeout_s,
        silence_factor=settings.trainer_silence_factor,
        silence_min_s=settings.trainer_silence_min_s,
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


def outer_settings(settings: SiteSettings, mark: str, socket_path: Path) -> OuterSettings:
    """How the outer worker is started."""

    def launch(generation: int) -> Launch:
        environment = {**settings.outer_environment, **_environment(settings, socket_path, generation)}
        log = settings.run_directory / "logs" / "outer.log"
        command = settings.outer_command or OUTER_COMMAND
        return Launch(command, environment, log, f"{mark}/outer-{generation}", _header(settings, "outer", generation))

    return OuterSettings(
        launch, _budget(settings), settings.outer_start_timeout_s, settings.outer_silence_max_s
    )  # fmt: skip


def trainer_settings(settings: SiteSettings, mark: str, socket_path: Path) -> TrainerSettings:
    """How a generation of trainers is started; its log is the output of torchrun and of all ranks."""
    command = settings.trainer_command or torchrun_command(settings.num_stages)

    def launch(generation: int) -> Launch:
        environment = {**settings.trainer_environment, **_environment(settings, socket_path, generation)}
        log = settings.run_directory / "logs" / f"trainer-{generation}.log"
        header = _header(settings, "trainer", generation)
        return Launch(command, environment, log, f"{mark}/trainer-{generation}", header)

    return TrainerSettings(launch, _budget(settings), settings.num_stages, settings.trainer_start_timeout_s)
