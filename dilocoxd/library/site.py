"""A training loop of somebody's own as the trainer of a site: `Site` (docs/tutorials/own-loop.md).

The daemon of the run directory is a process of its own, as in every site; this is the other end of its local socket
(docs/internals.md section 4), in the process of the loop. The loop decides what a step is. Between two steps `step`
does what the daemon has ordered since the last one, in the loop's own thread: no parameter changes behind its back.
"""

from __future__ import annotations

import math
import operator
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from torch import nn

from dilocoxd.config.manifest import Manifest, load_manifest
from dilocoxd.config.site_fit import LOSSES_MIN
from dilocoxd.errors import ConfigError, WorkerError, reason_of
from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.ipc.client import DaemonConnection, DaemonGone
from dilocoxd.library.describe import shared_parameters
from dilocoxd.models import ModelConfig, param_specs
from dilocoxd.models.config import EXTERNAL_KIND
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.trainer.data.held_out import BatchLosses, compared
from dilocoxd.trainer.loop import PhaseProgress
from dilocoxd.trainer.parameters.shared import SharedVectors
from dilocoxd.trainer.parameters.variants import flat_parameters
from dilocoxd.trainer.settings import eager_optimizer
from dilocoxd.wire.codec import one_line
from dilocoxd.wire.layout import Layout, make_layout
from dilocoxd.wire.local import buffers as local_buffers, trainer as local_trainer, worker as local_worker

RETRY_S: Final = 0.2


class Site:
    """Takes part in a run with a torch module of your own.

    `with Site(RUN_DIR, model) as site:` returns when the model holds the run's parameters; then call `site.step` after
    each `optimizer.step()`, for as long as it is true. The optimizer's own state is never touched.
    """

    def __init__(
        self,
        run_directory: str | os.PathLike[str],
        module: nn.Module,
        *,
        evaluate: Callable[[], float | Sequence[float]] | None = None,
        wait_s: float = 60.0,
    ) -> None:
        """Connect to the daemon of `run_directory`, and wait until it has caught up with the run.

        Args:
            module: what `describe` described; the plain module, not one that is wrapped or compiled.
            evaluate: validation loss of the module as it is, called when the daemon asks; while it runs, the module
                holds the run's shared parameters. Better the losses of its batches, equally long and the same each
                time: only then can sites be named whose contributions make them worse (harmful_contribution).
            wait_s: seconds for the daemon to be there and to let the loop in; catching up afterwards takes as long
                as it takes.
        Raises ConfigError if the module is not that of the run, or no daemon answers, and DaemonGone (a WorkerError).
        """
        run_dir = open_run_dir(Path(run_directory))
        manifest = load_manifest(run_dir.run_toml)
        parameters = shared_parameters(module)
        layout = _layout(manifest, parameters, run_dir.path)
        strategy = manifest.strategy
        self._flat = flat_parameters(
            parameters, layout, eager_optimizer(manifest), strategy.fragments, strategy.mix_alpha
        )
        self._tokens_max = manifest.largest_inner_step
        self._module = module
        self._evaluate_loop = evaluate
        self._is_uneven = False
        """It told losses of other batches when it was asked again."""
        self._phase = PhaseProgress(PhaseId(0), 1)
        self._is_training = self._is_paused = self._is_waiting = self._is_due = False
        self._num_steps = 0
        self._last_step = time.monotonic()
        self._idle_s = 0.0
        self._handlers: dict[type, Callable[[Any], None]] = {
            local_trainer.StartTraining: self._on_start,
            local_trainer.Extend: self._on_extend,
            local_trainer.CloseBoundary: self._on_close_boundary,
            local_trainer.TakeAnchor: self._on_take_anchor,
            local_trainer.Evaluate: self._on_evaluate,
            local_trainer.Pause: self._on_pause,
            local_trainer.Resume: self._on_resume,
            local_trainer.StopTraining: self._on_stop_training,
            local_worker.Stop: self._on_stop,
        }
        self.round = RoundIndex(0)
        """Of the shared state that the module holds, or has moved on from."""
        self.shared_steps = 0
        """Inner steps of all sites that stand behind that state: where a learning rate's schedule is."""
        self.is_running = True
        """False once the daemon stops: the loop should end."""
        self._link = _connected(run_dir.path / "sock", run_dir.path, wait_s)
        self._shared = SharedVectors(self._link, self._flat)
        self._link.send(local_trainer.TrainerReady())
        while self.is_running and not self._is_training:
            self._obey(self._link.receive())
        self._last_step = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave; the daemon stays, and waits for the next loop. What was trained since the last exchange is dropped."""
        self.is_running = False
        self._link.close()

    def step(self, loss: float, tokens: int = 1) -> bool:
        """Say that an optimizer step is done, and do what the daemon has ordered meanwhile. False: end the loop.

        It blocks while a round must be waited for, or somebody paused the site. Parameters may have moved on return.

        Args:
            loss: of this step, for people to see.
            tokens: what this step counts in the mean of all sites: tokens, or samples, the same unit at all sites.
        Raises ConfigError for more tokens than the run allows, DaemonGone when the daemon died.
        """
        if not self.is_running:
            return False
        loss, tokens = float(loss), int(operator.index(tokens))
        if not 1 <= tokens <= self._tokens_max:
            raise ConfigError(
                f"site.step(tokens={tokens}): a step of this run counts 1 to {self._tokens_max} (the larger of"
                " inner.batch_sequences and inner.batch_sequences_max, x model.seq_len); start the run with a larger"
                " model.seq_len, or count samples"
            )
        self._report(loss, tokens)
        while self.is_running:
            is_free = self._is_training and not (self._is_due or self._is_waiting or self._is_paused)
            waited_from = time.monotonic()
            command = self._link.receive(0 if is_free else None)
            if not is_free and not self._is_paused:
                self._idle_s += time.monotonic() - waited_from
            if command is None:
                break
            self._obey(command)
        self._last_step = time.monotonic()
        return self.is_running

    def alive(self, doing: str) -> None:
        """Tell the daemon what else the loop is busy with; without a sign of life it gives the loop up after a while.

        For your own evaluations and checkpoints, where they take longer than a step: see workers.step_timeout_s.
        """
        self._link.send(local_worker.WorkerAlive(doing=one_line(doing)[:64], per_mille=0))

    def _report(self, loss: float, tokens: int) -> None:
        phase = self._phase
        self._num_steps += 1
        phase.count(loss, tokens)
        self._link.send(
            local_trainer.StepDone(
                phase=phase.phase,
                inner_step=phase.inner_step,
                global_step=self._num_steps,
                loss=loss if math.isfinite(loss) else local_trainer.NOT_FINITE,
                tokens=tokens,
                step_seconds=time.monotonic() - self._last_step,
                idle_seconds=self._idle_s,
            )
        )
        if phase.inner_step >= phase.inner_steps:
            self._is_due = True
            self._link.send(local_trainer.BoundaryDue(phase=phase.phase, inner_steps=phase.inner_step))

    # --- what the daemon orders ---------------------------------------------------------------------------------------

    def _obey(self, command: Any) -> None:
        handler = self._handlers.get(type(command))
        if handler is not None:  # Attach of a buffer that we have already needs nothing
            handler(command)

    def _on_start(self, command: local_trainer.StartTraining) -> None:
        self._flat.replace(self._shared.anchor())
        self._hold(command.round, command.shared_steps)
        self._begin(command.phase, command.inner_steps)
        self._is_training = True
        self._link.send(local_trainer.AnchorTaken(round=command.round, how="start", phase=command.phase, inner_step=0))

    def _begin(self, phase: PhaseId, inner_steps: int) -> None:
        self._phase = PhaseProgress(phase, max(1, inner_steps))
        self._is_due = False

    def _hold(self, round_index: RoundIndex, shared_steps: int) -> None:
        self.round = round_index
        self.shared_steps = max(self.shared_steps, shared_steps)

    def _on_extend(self, command: local_trainer.Extend) -> None:
        phase = self._phase
        phase.inner_steps = max(phase.inner_steps, phase.inner_step) + command.inner_steps
        self._is_due = phase.inner_step >= phase.inner_steps

    def _on_close_boundary(self, command: local_trainer.CloseBoundary) -> None:
        closed = self._phase
        self._link.check()  # given up meanwhile, we must not write where another loop does
        self._flat.subtract_from(self._shared.phase_here)
        self._flat.mark_base()
        if command.then == "replace":
            self._flat.begin(self._shared.anchor(), command.num_contributors)
            self._hold(command.round, command.shared_steps)
        self._is_waiting = command.then == "wait"
        self._link.send(
            local_trainer.BoundaryClosed(
                phase=closed.phase,
                inner_steps=closed.inner_step,
                tokens=closed.tokens,
                mean_loss=closed.mean_loss,
                took_anchor=command.then == "replace",
                round=self.round,
            )
        )
        self._begin(command.next_phase, command.inner_steps)

    def _on_take_anchor(self, command: local_trainer.TakeAnchor) -> None:
        self._flat.take(self._shared.anchor(), command.how, command.mixed_round)
        self._hold(command.round, command.shared_steps)
        self._is_waiting = False
        phase = self._phase
        self._link.send(
            local_trainer.AnchorTaken(
                round=command.round, how=command.how, phase=phase.phase, inner_step=phase.inner_step
            )
        )

    def _on_evaluate(self, command: local_trainer.Evaluate) -> None:
        started, loss, num_losses = time.monotonic(), local_trainer.UNKNOWN, 0
        left_out: tuple[local_trainer.LeftOut, ...] = ()
        if self._evaluate_loop is not None:
            own, was_training = self._flat.save(), self._module.training
            self._flat.load(self._shared.anchor())
            try:
                measured = _losses(self._evaluate_loop())
                (loss, _), num_losses = measured.mean, len(measured.losses)
                left_out = self._left_out(command.round, measured, self._evaluate_loop)
            finally:
                self._module.train(was_training)
                self._flat.restore(own)
        self._link.send(
            local_trainer.Evaluated(
                round=command.round,
                validation_loss=loss if math.isfinite(loss) else local_trainer.UNKNOWN,
                seconds=time.monotonic() - started,
                left_out=left_out,
                num_losses=0 if self._is_uneven else num_losses,
            )
        )

    def _left_out(
        self, round_index: RoundIndex, measured: BatchLosses, evaluate: Callable[[], float | Sequence[float]]
    ) -> tuple[local_trainer.LeftOut, ...]:
        """As trainer/loop.py does it. Of a single loss nobody could say how far chance moves it."""
        place = self._shared.left_out_at(round_index)
        if place is None or len(measured.losses) < LOSSES_MIN:
            return ()
        self._flat.load(self._shared.anchor(), self._shared.left_out())
        if place != self._shared.left_out_at(round_index):
            return ()  # the outer worker has begun with the next entry while we read
        self.alive("evaluate")
        without = _losses(evaluate())
        self._is_uneven = len(without.losses) != len(measured.losses)
        return () if self._is_uneven else compared(place, [measured], [without])

    def _on_pause(self, _: local_trainer.Pause) -> None:
        self._is_paused = True

    def _on_resume(self, _: local_trainer.Resume) -> None:
        self._is_paused = False

    def _on_stop_training(self, _: local_trainer.StopTraining) -> None:
        phase = self._phase
        self._link.send(local_trainer.TrainerStopped(phase=phase.phase, inner_step=phase.inner_step))
        self.is_running = False

    def _on_stop(self, _: local_worker.Stop) -> None:
        self.is_running = False


def _losses(told: float | Sequence[float]) -> BatchLosses:
    """What a loop's `evaluate` returned. Each batch counts the same. Raises ConfigError if there is none."""
    losses = [float(one) for one in told] if isinstance(told, Sequence) else [float(told)]
    if not losses:
        raise ConfigError("Site(evaluate=...) returned no loss; let it return one for each batch, or leave it out")
    return BatchLosses(losses, [1.0] * len(losses), [1] * len(losses))


def _layout(manifest: Manifest, parameters: list[tuple[str, nn.Parameter]], run_directory: Path) -> Layout:
    """The run's layout. Raises ConfigError unless the module is the one that the run describes."""
    if manifest.model.kind != EXTERNAL_KIND:
        raise ConfigError(
            f"{run_directory}: dilocoxd itself trains this run (model.kind = {manifest.model.kind!r}); start one for a"
            " module of your own with `dilocoxd start --module DIR`"
        )
    specs = param_specs(ModelConfig.of_run(manifest))
    own = {name: tuple(param.shape) for name, param in parameters}
    for spec in specs:
        if spec.name not in own:
            raise ConfigError(f"the run has a parameter {spec.name}, your module has none; use the run's module")
        if own.pop(spec.name) != spec.shape:
            raise ConfigError(f"the run's parameter {spec.name} is {list(spec.shape)}; use the run's module")
    if own:
        raise ConfigError(f"your module has a parameter {next(iter(own))}, the run has none; use the run's module")
    return make_layout(specs, manifest.strategy.segment_elements_max)


def _connected(path: Path, run_directory: Path, wait_s: float) -> DaemonConnection:
    """A connection that the daemon has accepted, with its buffers. Raises ConfigError after `wait_s` seconds."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return _greeted(DaemonConnection(str(path)), deadline)
        except (OSError, DaemonGone) as error:
            # Not there yet, or its socket is, but it cannot take a trainer yet.
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise ConfigError(
                    f"no daemon takes a loop at {path} within {wait_s:g} s ({reason_of(error)}); start it with"
                    f" `dilocoxd run {run_directory}`, and let one loop at a time come to it"
                ) from error
        time.sleep(min(RETRY_S, left_s))


def _greeted(link: DaemonConnection, deadline: float) -> DaemonConnection:
    """`link` once it has its buffers. Raises DaemonGone, also if they are not there at `deadline`."""
    try:
        link.send(local_worker.WorkerHello(role="trainer", pid=os.getpid(), generation=0, stage_rank=0, num_stages=1))
        while local_buffers.ANCHOR not in link.buffers or local_buffers.PHASE not in link.buffers:
            # A socket takes connections before anybody serves it, and while its daemon hangs.
            if link.receive(max(0.0, deadline - time.monotonic())) is None:
                raise DaemonGone("its socket is there, but it does not answer")
    except WorkerError:
        link.close()
        raise
    return link
