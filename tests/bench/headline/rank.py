"""A rank of torch's own DistributedDataParallel: `... rank RUN_DIR RANK NUM_RANKS STEPS STEP_S`, started by ddp.py.

The model, first weights, text and batch of the run directory; AdamW of torch. Says that it is ready with links as they
are, waits for a line, then trains. Prints for each step its seconds and the validation loss behind it, for which no
time is counted. A step is the pause and the work of a step without links, and what links add: DDP sums while it goes
backward.
"""

import json
import os
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dilocoxd.models import StageSpan, build_stage, param_specs
from dilocoxd.models.genesis import init_of_model
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.trainer.data import prepare
from dilocoxd.trainer.data.order import BatchOrder
from dilocoxd.trainer.data.targets import cross_entropy
from dilocoxd.trainer.settings import StageSettings, make_settings

PATIENCE = timedelta(hours=2)
"""Longer than any step over any link here."""
FREE_STEPS = 5


class Rank:
    """One process of DDP."""

    def __init__(self, settings: StageSettings, model_seed: int, step_s: float) -> None:
        config = settings.model
        stage = build_stage(config, StageSpan(0, 1, 0, config.num_layers), device=torch.device("cpu"))
        parameters = dict(stage.global_parameters())
        with torch.no_grad():
            for spec in param_specs(config):
                init_of_model(config, spec, model_seed, parameters[spec.name].view(-1))
        self.num_parameters = sum(parameter.numel() for parameter in parameters.values())
        self.model = DistributedDataParallel(stage, init_sync=False)  # equal by the seed
        self._settings = settings
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.optimizer.lr, fused=True)
        prepared = prepare(settings.data, settings.tokenizer, settings.cache_dir, lambda _: None)
        self._order = BatchOrder(prepared, config.seq_len, seed=settings.data_seed, peer=settings.data_stream)
        self._step = 0
        self._step_s = step_s
        self.work_s = 0.0

    def free(self) -> None:
        """Measure what a step works without links. Nothing is learnt."""
        took = []
        for _ in range(FREE_STEPS):
            began = time.monotonic()
            with self.model.no_sync():
                self._gradients()
            self._optimizer.zero_grad()
            took.append(time.monotonic() - began)
        self.work_s = statistics.median(took)

    def step(self) -> float:
        """Seconds of one step."""
        began = time.monotonic()
        time.sleep(max(0.0, self._step_s - self.work_s))
        self._gradients()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._settings.optimizer.clip_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.optimizer.learning_rate(self._step, self._step)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._step += 1
        return time.monotonic() - began

    def _gradients(self) -> None:
        batch = self._settings.pipeline.batch_sequences
        ids_BT, targets_BT = self._order.batch(self._step * batch, batch)
        loss = cross_entropy(self.model(ids_BT), targets_BT)
        loss.backward()  # type: ignore[no-untyped-call]
        loss.item()

    @torch.no_grad()
    def validation_loss(self) -> float:
        batches = self._order.validation_batches(
            self._settings.validation_sequences, self._settings.pipeline.batch_sequences
        )
        return statistics.mean(float(cross_entropy(self.model.module(ids), targets)) for ids, targets in batches)


def say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    run_dir, rank, num_ranks, steps, step_s = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=int(rank), world_size=int(num_ranks), timeout=PATIENCE)
    manifest, site = open_run_dir(Path(run_dir)).load()
    trainer = Rank(make_settings(manifest, site, data_stream=f"ddp {rank}"), manifest.seeds.model, float(step_s))
    trainer.free()
    dist.barrier()
    say(ready=True, parameters=trainer.num_parameters, work_s=trainer.work_s, loss=trainer.validation_loss())
    sys.stdin.readline()
    for _ in range(int(steps)):
        seconds = trainer.step()
        say(seconds=seconds, loss=trainer.validation_loss())
    os._exit(0)  # gloo's threads may abort one that is done


if __name__ == "__main__":
    main()
