"""Entry of one trainer rank: ``python -m dilocoxd.trainer.main`` under torchrun, one process per pipeline rank.

Order: say hello, prepare data, build the stage, join the process group, wait for the shared buffers, train as told.
Ends with os._exit: gloo's threads can abort a process that is done (LOCAL_TRAINING section 1).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from dilocoxd.errors import ConfigError, DilocoxdError, StoreError
from dilocoxd.ipc.child import die_with_parent
from dilocoxd.ipc.client import GENERATION_VARIABLE, Connection, DaemonGone
from dilocoxd.models import param_specs
from dilocoxd.models.build import check_model
from dilocoxd.trainer.channel import EXIT_DAEMON_GONE, CommandChannel, exit_when_daemon_goes
from dilocoxd.trainer.data import PreparedData, prepare
from dilocoxd.trainer.data.order import BatchOrder
from dilocoxd.trainer.flat import FlatParameters
from dilocoxd.trainer.inner import InnerTraining
from dilocoxd.trainer.loop import TrainingLoop
from dilocoxd.trainer.mixing import MixedParameters
from dilocoxd.trainer.overlay import EagerParameters
from dilocoxd.trainer.pipeline import Pipeline
from dilocoxd.trainer.settings import TrainerSettings, device_of, load_settings
from dilocoxd.wire import local
from dilocoxd.wire.layout import Layout, make_layout

log = logging.getLogger(__name__)

_COLLECTIVE_TIMEOUT: Final = timedelta(minutes=10)
"""Longer than any step; a dead rank is noticed at once by the broken connection, a hung one by the daemon."""

_EXIT_FAILED: Final = 1


def main() -> int:
    """Run one rank until the daemon says stop. Returns the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    die_with_parent()
    try:
        link = Connection()
    except OSError as error:
        log.error("cannot reach the daemon's socket: %s", error)
        return EXIT_DAEMON_GONE
    try:
        exit_when_daemon_goes(link)
        _run(link, os.environ)
    except DaemonGone as error:
        log.error("%s", error)
        return EXIT_DAEMON_GONE
    except (DilocoxdError, RuntimeError) as error:
        # RuntimeError: what torch raises for a lost rank, out of memory or a device error.
        log.exception("trainer failed")
        _tell_failure(link, error)
        return ConfigError.exit_code if isinstance(error, ConfigError) else _EXIT_FAILED
    return 0


def _run(link: Connection, environment: Mapping[str, str]) -> None:
    rank, num_ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    link.send(
        local.WorkerHello(
            role="trainer",
            pid=os.getpid(),
            generation=int(environment.get(GENERATION_VARIABLE, "0")),
            stage_rank=rank,
            num_stages=num_ranks,
        )
    )
    settings = load_settings(environment)
    torch.set_num_threads(settings.num_threads)
    check_model(settings.model)
    prepared = _prepare_data(link, settings)
    pipeline = _join_pipeline(settings, environment)
    layout = make_layout(param_specs(settings.model), settings.segment_elements_max)
    flat = _flat_parameters(pipeline, layout, settings)
    order = BatchOrder(prepared, settings.model.seq_len, seed=settings.data_seed, peer=settings.data_stream)
    batch_sequences = settings.pipeline.batch_sequences
    validation = order.validation_batches(settings.validation_sequences, batch_sequences)
    while local.ANCHOR not in link.buffers or local.PHASE not in link.buffers:
        link.receive()
    channel = CommandChannel(link, pipeline.control)
    channel.barrier()
    training = InnerTraining(pipeline, settings.optimizer)
    log.info("rank %d of %d is ready", rank, num_ranks)
    if rank == 0:
        link.send(local.TrainerReady())
    TrainingLoop(link, channel, training, flat, order, validation).run()
    channel.barrier()


def _flat_parameters(pipeline: Pipeline, layout: Layout, settings: TrainerSettings) -> FlatParameters:
    if settings.eager_optimizer is not None:
        return EagerParameters(pipeline.parameters(), layout, settings.eager_optimizer)
    if settings.fragments:
        return MixedParameters(pipeline.parameters(), layout, settings.fragments, settings.mix_alpha)
    return FlatParameters(pipeline.parameters(), layout)


def _prepare_data(link: Connection, settings: TrainerSettings) -> PreparedData:
    def report(text: str) -> None:
        log.info("data: %s", text)
        link.send(local.WorkerAlive(doing=f"data: {text}"[:200], per_mille=0))

    return prepare(settings.data, settings.tokenizer, settings.cache_dir, report)


def _join_pipeline(settings: TrainerSettings, environment: Mapping[str, str]) -> Pipeline:
    if environment.get("LOCAL_WORLD_SIZE") == environment["WORLD_SIZE"]:
        # All ranks are on this machine: gloo must not pick an outside interface by the host's name.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = torch.device(device_of(settings))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(settings.backend, timeout=_COLLECTIVE_TIMEOUT)
    return Pipeline(settings.model, settings.pipeline, device=device)


def _tell_failure(link: Connection, error: Exception) -> None:
    kinds: dict[type[Exception], str] = {ConfigError: "config", StoreError: "store"}
    try:
        link.send(local.WorkerFailed(request=0, kind=kinds.get(type(error), "failed"), detail=str(error)[:4000]))
    except DilocoxdError:
        log.error("the daemon did not hear why")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
