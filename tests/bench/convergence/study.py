"""One run of one preset, and the file that remembers finished runs."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dilocoxd.compress.codec import NotEncodableError
from dilocoxd.compress.lowrank import LowRank
from dilocoxd.compress.mask import RandomMask
from dilocoxd.outer.optimizers import outer_from_name
from dilocoxd.outer.schedule import AdaptiveLimits, cosine_rate, qsr_inner_steps
from dilocoxd.store.prepared import default_cache_dir
from dilocoxd.trainer.data.prepare import PreparedData
from dilocoxd.wire.layout import group_key
from tests.bench.convergence.presets import Preset, resolve
from tests.bench.convergence.report import summary
from tests.bench.convergence.sites import Run, Site, Task, checkpoint, checkpoint_fields, train_all_reduce
from tests.reference.adaptive import AdaptiveRank
from tests.reference.engine import Engine, Recipe
from tests.reference.phases import Phases
from tests.reference.streaming import Streaming, StreamingSettings, strided_fragments

SITES = ("a", "b", "c", "d")
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Start:
    """What all presets of one seed share. The checkpoint is the same for all seeds: they differ in the data's order."""

    task: Task
    data: PreparedData
    seed: int
    theta: Tensor

    @classmethod
    def of(cls, task: Task, data: PreparedData, seed: int, progress: Progress) -> Start:
        """Loads the checkpoint of this task, trained once per machine and version of torch, or trains it."""
        path = default_cache_dir() / "convergence" / f"{_fingerprint(task, data)}.pt"
        if path.exists():
            return cls(task, data, seed, torch.load(path))
        start = cls(task, data, seed, checkpoint(task, data, progress))
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            torch.save(start.theta, file)
        Path(file.name).replace(path)
        return start

    def validation_loss(self) -> float:
        """Loss of the checkpoint: of a preset that would learn nothing more."""
        return Site(Run(self.task, self.data, self.seed, 1, 1e-3), "probe").validation_loss(self.theta)


def _fingerprint(task: Task, data: PreparedData) -> str:
    parts = (checkpoint_fields(task), data.data_sha256, data.tokenizer_sha256, torch.__version__)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def run_preset(start: Start, name: str, total_steps: int, progress: Progress) -> dict[str, Any]:
    """Final validation loss of the shared model and bytes; `total_steps` inner steps per site."""
    task, seed = start.task, start.seed
    started = time.process_time()
    row: dict[str, Any] = {"preset": name, "seed": seed, "steps": total_steps, "sites": len(SITES)}
    row["tokens"] = total_steps * len(SITES) * task.batch_sequences * task.seq_len
    layout, preset = task.layout(), resolve(name)
    run = Run(task, start.data, seed, total_steps, preset.inner_lr, preset.inner, preset.min_lr_ratio)
    if preset.is_per_step:
        row |= {"validation_loss": train_all_reduce(run, start.theta, SITES, progress), "bytes_ratio": 1.0, "rounds": 0}
    else:
        engine = _train(run, start.theta, preset, progress)
        probe = Site(run, "probe")
        row["validation_loss"] = probe.validation_loss(engine.anchor)
        row["rounds"] = max(engine.outer_steps)
        sent = engine.payload_bytes_sent / len(SITES)
        row["payload_bytes_per_site"] = sent
        row["bytes_ratio"] = total_steps * 4 * layout.numel / sent
        row["bits_per_parameter_and_round"] = 8 * sent / max(1, row["rounds"]) / layout.numel
    row["checkpoint_loss"] = start.validation_loss()
    row["parameters"] = layout.numel
    row["unigram_entropy"] = start.data.unigram_entropy
    row["cpu_seconds"] = round(time.process_time() - started, 1)
    return row


def _train(run: Run, start: Tensor, preset: Preset, progress: Progress) -> Engine:
    layout = run.task.layout()
    optimizer = outer_from_name(preset.optimizer, preset.lr, preset.momentum)
    recipe = Recipe(preset.transform(layout), optimizer, preset.error_feedback, preset.feedback != "none")
    engine = Engine.start(recipe, start, SITES)
    sites = {name: Site(run, name) for name in SITES}

    def train(site: str, theta: Tensor, first_step: int, num_steps: int) -> None:
        sites[site].train(theta, first_step, num_steps)

    try:
        if preset.fragments:
            _run_streaming(engine, train, preset, run.total_steps, progress)
        else:
            _run_phases(engine, train, preset, run.total_steps, progress)
    except NotEncodableError:
        # A diverged control: what it offers is refused, and its loss says the rest.
        engine.anchor.fill_(math.nan)
    return engine


def _run_phases(
    engine: Engine, train: Callable[..., None], preset: Preset, total_steps: int, progress: Progress
) -> None:
    tau = round(preset.tau * preset.inner_steps)
    phases = Phases(engine, train, preset.delay, tau)
    adaptive = None
    if isinstance(engine.recipe.transform, RandomMask):
        mask = engine.recipe.transform
        engine.after_commit = lambda: mask.tune(max(engine.outer_steps), 0)
    if preset.is_adaptive and isinstance(engine.recipe.transform, LowRank):
        transform = engine.recipe.transform
        limits = AdaptiveLimits(transform.lowrank_r_max, preset.inner_steps, lowrank_r_min=4, inner_steps_min=5)
        adaptive = engine.after_commit = AdaptiveRank(transform, limits)
    done = 0
    while done < total_steps:
        if preset.qsr:
            steps = _qsr_phase(preset, done, total_steps)
        else:
            steps = next_phase(adaptive.inner_steps if adaptive else preset.inner_steps, total_steps - done)
        phases.run_phase(steps)
        done += steps
        progress(done)
    phases.finish()


def next_phase(inner_steps: int, steps_left: int) -> int:
    """Length of the next phase, so that the rest of the run is cut into equal phases of at least `inner_steps`.

    A last phase of a few steps would cost as many bytes as a full one.
    """
    return steps_left // max(1, steps_left // inner_steps)


def _qsr_phase(preset: Preset, done: int, total_steps: int) -> int:
    rate = cosine_rate(preset.inner_lr, preset.min_lr_ratio, total_steps, done)
    steps, left = qsr_inner_steps(preset.qsr, rate, preset.inner_steps), total_steps - done
    return left if left - steps < preset.inner_steps else steps


def _run_streaming(
    engine: Engine, train: Callable[..., None], preset: Preset, total_steps: int, progress: Progress
) -> None:
    layout = engine.recipe.transform.layout
    keys = [group_key(layout.pieces(segment)[0].name) for segment in layout.segments]
    order = sorted(set(keys), key=keys.index)
    fragments = strided_fragments([order.index(key) for key in keys], preset.fragments)
    offsets = tuple(index * preset.inner_steps // len(fragments) for index in range(len(fragments)))
    overlap = round(preset.tau * preset.inner_steps)
    settings = StreamingSettings(fragments, offsets, preset.inner_steps, overlap, preset.alpha)
    streaming = Streaming(engine, train, settings)
    while streaming.num_steps < total_steps:
        streaming.run_steps(min(preset.inner_steps, total_steps - streaming.num_steps))
        progress(streaming.num_steps)
    streaming.finish()


class Results:
    """Finished runs in one JSON file, replaced atomically after each: an interrupted study goes on where it was.

    Several processes may share the file.
    """

    def __init__(self, path: Path, task: Task) -> None:
        self._path = path
        self._task = dataclasses.asdict(task)
        self.rows: list[dict[str, Any]] = []
        self._read()

    def has(self, name: str, seed: int, steps: int) -> bool:
        self._read()
        return any((r["preset"], r["seed"], r["steps"]) == (name, seed, steps) for r in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._read()
            self.rows.append(row)
            rows = ",\n".join(json.dumps(row) for row in self.rows)
            head = json.dumps({**summary(self.rows), "task": self._task, "torch": torch.__version__})
            temporary = self._path.with_suffix(".tmp")
            temporary.write_text(f'{head[:-1]},\n"rows": [\n{rows}\n]}}\n', encoding="utf-8")
            temporary.replace(self._path)

    def _read(self) -> None:
        if not self._path.exists():
            return
        kept = json.loads(self._path.read_text(encoding="utf-8"))
        if kept["task"] != self._task:
            raise SystemExit(f"{self._path} holds another task; choose another --json or remove it")
        self.rows = kept["rows"]
