"""Entry of one trainer rank: `main`, called in a process that the fork server forked, one per rank of the site's mesh.

Order: say hello, prepare data, build the stage, join the process group, wait for the shared buffers, train as told.
When `main` returns the process ends at once (ipc/fork_server.py): gloo's threads can abort one that is done.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol

import torch
from torch import Tensor

from dilocoxd.answers.words import plural
from dilocoxd.errors import ConfigError, DilocoxdError, StoreError
from dilocoxd.ipc.client import (
    CLUSTER_ADDRESS_VARIABLE,
    GENERATION_VARIABLE,
    ON_NODE_VARIABLE,
    RUN_DIRECTORY_VARIABLE,
    DaemonConnection,
    DaemonGone,
)
from dilocoxd.ipc.hang_files import DUMP_SIGNAL
from dilocoxd.ipc.network_interface import interface_of
from dilocoxd.models import cut_stages, param_specs
from dilocoxd.models.build import check_model
from dilocoxd.models.frozen import fill_frozen
from dilocoxd.store.durable import DiskFull
from dilocoxd.trainer.away.moving import NodeLink
from dilocoxd.trainer.channel import EXIT_DAEMON_GONE, CommandChannel, exit_when_daemon_goes
from dilocoxd.trainer.data import prepare
from dilocoxd.trainer.data.mixed import StoreReading, order_of
from dilocoxd.trainer.data.order import BatchOrder, SampleOrder
from dilocoxd.trainer.flight_recorder import start_recording
from dilocoxd.trainer.inner import InnerTraining
from dilocoxd.trainer.loop import TrainingLoop
from dilocoxd.trainer.parallel.compiled import keep_code_in
from dilocoxd.trainer.parallel.local import place_of
from dilocoxd.trainer.parameters.variants import flat_parameters
from dilocoxd.trainer.pipeline import Pipeline
from dilocoxd.trainer.pulse import Pulse
from dilocoxd.trainer.rendezvous import join
from dilocoxd.trainer.settings import StageSettings, device_of, load_settings
from dilocoxd.wire.layout import make_layout
from dilocoxd.wire.local import buffers as local_buffers, trainer as local_trainer, worker as local_worker
from dilocoxd.wire.local.node import NODE_FULL

log = logging.getLogger(__name__)

GLOO_INTERFACE: Final = "GLOO_SOCKET_IFNAME"
_INTERFACE_VARIABLES: Final = (GLOO_INTERFACE, "NCCL_SOCKET_IFNAME")
_COLLECTIVE_TIMEOUT: Final = timedelta(minutes=10)
"""Longer than any step; a dead rank is noticed at once by the broken connection, a hung one by the daemon."""

_EXIT_FAILED: Final = 1


def main() -> int:
    """Run one rank until the daemon says stop. Returns the exit code."""
    rank = os.environ["RANK"]
    signal.signal(DUMP_SIGNAL, signal.SIG_IGN)  # until there is something to tell: else it would end the process
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format=f"%(asctime)s stage rank {rank} %(name)s %(message)s"
    )
    try:
        link = NodeLink() if os.environ.get(ON_NODE_VARIABLE) else DaemonConnection()
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


def _run(link: DaemonConnection, environment: Mapping[str, str]) -> None:
    rank, num_ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    link.send(
        local_worker.WorkerHello(
            role="trainer",
            pid=os.getpid(),
            generation=int(environment.get(GENERATION_VARIABLE, "0")),
            stage_rank=rank,
            num_stages=num_ranks,
        )
    )
    settings = load_settings(environment)
    try:
        start_recording(Path(environment[RUN_DIRECTORY_VARIABLE]), rank)
    except OSError as error:
        log.warning("a hang of this rank will not be told: %s", error)  # nothing that training needs
    torch.set_num_threads(settings.num_threads)
    check_model(settings.model, keeps_documents_apart=settings.has_document_mask)
    order = _order(link, settings)
    pipeline = _join_pipeline(settings, environment, order.document_end)
    layout = make_layout(param_specs(settings.model), settings.segment_elements_max)
    flat = flat_parameters(
        pipeline.parameters(),
        layout,
        settings.eager_optimizer,
        settings.fragments,
        settings.mix_alpha,
        place=pipeline.place,
    )
    validation = validation_of(order, settings)
    while local_buffers.ANCHOR not in link.buffers or local_buffers.PHASE not in link.buffers:
        link.receive()
    Pulse(lambda: link.send(local_worker.WorkerAlive(doing="", per_mille=0))).listen_to(pipeline.modules)
    channel = CommandChannel(link, pipeline.control)
    check_text(channel, order, num_ranks)
    training = InnerTraining(pipeline, settings.optimizer, save_every=settings.save_every)
    log.info("rank %d of %d is ready", rank, num_ranks)
    if rank == 0:
        link.send(local_trainer.TrainerReady())
    TrainingLoop(link, channel, training, flat, order, validation).run()
    channel.barrier()


def validation_of(order: SampleOrder, settings: StageSettings) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """What this rank evaluates on, by source; nothing where the run never asks. Raises ConfigError if there is none."""
    if not settings.is_evaluated:
        return {}
    return order.validation_by_source(settings.validation_sequences, settings.validation_batch)


def _order(link: DaemonConnection, settings: StageSettings) -> SampleOrder:
    def report(text: str) -> None:
        log.info("data: %s", text)
        link.send(local_worker.WorkerAlive(doing=f"data: {text}"[:200], per_mille=0))

    model = settings.model
    if settings.sources:
        report(f"opening {len(settings.sources)} token stores")
        return order_of(
            settings.sources,
            StoreReading(model.seq_len, model.vocab_size, settings.data_seed, settings.has_document_mask),
            settings.data_stream,
            settings.leased_share,
        )
    if settings.has_document_mask:
        raise ConfigError(
            "data.document_mask = true keeps the documents of token stores apart, but this run trains on one text; pack"
            " it with `dilocoxd data pack`, or set it to false"
        )
    prepared = prepare(settings.data, settings.tokenizer, settings.cache_dir, report)
    return BatchOrder(prepared, model.seq_len, seed=settings.data_seed, peer=settings.data_stream)


class Summing(Protocol):
    """What of the ranks' channel is needed here."""

    def sum(self, values: Sequence[float]) -> list[float]: ...


def check_text(channel: Summing, order: SampleOrder, num_ranks: int) -> None:
    """All ranks are here, and read the same. Token stores have their hashes in the manifest, a text need not.

    Raises ConfigError.
    """
    number = text_number(order)
    (total,) = channel.sum([number])
    if total != number * num_ranks:
        raise ConfigError(
            "the machines of this site do not read the same text: the first stage would train on one and the last be"
            " told another one's targets; give each the same files (paths.corpora), and put data.sha256 into run.toml"
        )


def text_number(order: SampleOrder) -> float:
    """Another one for another text, but for chance; sums of it over all ranks are exact."""
    return float(int(order.text_sha256[:8], 16)) if isinstance(order, BatchOrder) else 0.0


def interfaces(environment: Mapping[str, str]) -> dict[str, str]:
    """What gloo and NCCL are told: to listen where the trainers of this site meet. Nothing that they say is sealed.

    Raises ConfigError where that cannot be told, for they would choose an interface by the host's name then.
    """
    given = {name: environment[name] for name in _INTERFACE_VARIABLES if environment.get(name)}
    if address := environment.get(CLUSTER_ADDRESS_VARIABLE):
        name = interface_of(address)
        if not name and not given:
            raise ConfigError(
                f"no network interface of this machine has {address} as its address, so trainers would listen on any;"
                " give a first address as cluster.host, or name the interface in GLOO_SOCKET_IFNAME (NCCL_SOCKET_IFNAME"
                " with GPUs)"
            )
        return dict.fromkeys(_INTERFACE_VARIABLES, name or next(iter(given.values()))) | given
    if environment.get("LOCAL_WORLD_SIZE") == environment["WORLD_SIZE"]:
        # All ranks are on this machine: gloo must not pick an outside interface by the host's name.
        return {GLOO_INTERFACE: "lo"} | given
    return given


def required_device(name: str) -> torch.device:
    """`name`, and of several GPUs the one in use from now on.

    Raises ConfigError if torch does not have it: the same at each restart, so the daemon ends and says why.
    """
    device = torch.device(name)
    if device.type == "cpu":
        return device
    on_cpu = "set parallel.device = 'cpu' with parallel.backend = 'gloo' in site.toml"
    text = f"parallel.device = 'cuda' wants {name} for this trainer, but torch {torch.__version__}"
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        raise ConfigError(f"{text} is built without CUDA; install a CUDA build of torch, or {on_cpu}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.index >= count:
        raise ConfigError(
            f"{text} finds {plural(count, 'GPU')} here; install the driver, see that CUDA_VISIBLE_DEVICES hides none,"
            f" use fewer trainer processes (parallel.pipeline, shard, replicate, tensor), or {on_cpu}"
        )
    torch.cuda.set_device(device)
    return device


def _join_pipeline(settings: StageSettings, environment: Mapping[str, str], document_end: int | None) -> Pipeline:
    os.environ.update(interfaces(environment))
    device = required_device(device_of(settings))
    join(settings.backend, environment, timeout=_COLLECTIVE_TIMEOUT)
    if settings.pipeline.is_compiled:
        keep_code_in(settings.cache_dir / "compiled")
    pipeline = _cut_pipeline(settings, device, document_end)
    if settings.frozen is not None:
        base = settings.frozen.open(lambda text: log.info("model: %s", text))
        fill_frozen(pipeline.modules, base, place_of)
    return pipeline


def _cut_pipeline(settings: StageSettings, device: torch.device, document_end: int | None) -> Pipeline:
    """By arithmetic or site.toml, or as an earlier generation measured it where the site asks for that."""
    config, file = settings.pipeline, settings.cut_file
    if file is not None:
        spans = cut_stages(settings.model, config.num_stages, config.layers)
        config = replace(config, layers=file.agreed([span.end_layer - span.first_layer for span in spans]))
    pipeline = Pipeline(settings.model, config, device=device, document_end=document_end)
    pipeline.pace.file = file
    return pipeline


def _tell_failure(link: DaemonConnection, error: Exception) -> None:
    kinds: dict[type[Exception], str] = {ConfigError: "config", DiskFull: NODE_FULL, StoreError: "store"}
    try:
        link.send(local_worker.WorkerFailed(request=0, kind=kinds.get(type(error), "failed"), detail=str(error)[:4000]))
    except DilocoxdError:
        log.error("the daemon did not hear why")
