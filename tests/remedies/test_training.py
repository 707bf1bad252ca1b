"""Remedies about losses and idle trainers: a run that goes wrong, and the next one with what the words ask for."""

import copy
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dilocoxd.ipc.client import PEER_VARIABLE, RUN_DIRECTORY_VARIABLE
from dilocoxd.models import StageSpan, build_stage, init_parameter, init_std
from dilocoxd.telemetry.alerts import kind_of
from dilocoxd.telemetry.loss_watch import LossWatch
from dilocoxd.trainer.optimizer import InnerOptimizer, clip_factor, gradient_sum_of_squares, scale_gradients
from dilocoxd.trainer.settings import load_settings
from tests.remedies.test_findings import invoke
from tests.unit.daemon.observe.test_alert_rules import World

STEPS = 40
DESCENT = 60
"""Steps of the first descent, after which the losses of a long run are like one another."""
PERIOD = 7
"""The text repeats itself, so that a few steps learn it."""
State = Mapping[str, Tensor]


class Training:
    """Inner steps as a trainer makes them, by the run.toml of a run that `init` made with these fields."""

    def __init__(self, folder: Path, *settings: str, start: State | None = None) -> None:
        options = [part for one in settings for part in ("--set", one)]
        assert invoke("init", "tiny", "--dir", str(folder), "--host", "127.0.0.1", *options).return_value == 0
        found = load_settings({RUN_DIRECTORY_VARIABLE: str(folder), PEER_VARIABLE: "QmTest"})
        self._config, model = found.optimizer, found.model
        whole = StageSpan(stage_index=0, num_stages=1, first_layer=0, end_layer=model.num_layers)
        self._stage = build_stage(model, whole, device=torch.device("cpu"))
        self._params = dict(self._stage.global_parameters())
        with torch.no_grad():
            for name, param in self._params.items():
                std = init_std(name, model.init_std, model.num_layers)
                init_parameter(name, param.shape, 0, param.view(-1), std=std)
                param.copy_((start or {}).get(name, param))
        self._optimizer = InnerOptimizer(self._params, self._config)
        row = torch.arange(model.seq_len + 1) % PERIOD
        self._ids, self._targets = row[:-1].repeat(4, 1), row[1:].repeat(4, 1)

    def state(self) -> State:
        """What an export of this moment has."""
        return {name: param.detach().clone() for name, param in self._params.items()}

    def losses(self, steps: int = STEPS) -> Iterator[float]:
        """Of each inner step, before it."""
        for step in range(steps):
            logits = self._stage(self._ids)
            loss = functional.cross_entropy(logits.flatten(0, 1), self._targets.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            params = list(self._params.values())
            scale_gradients(params, clip_factor(gradient_sum_of_squares(params), self._config.clip_norm))
            self._optimizer.step(self._config.learning_rate(step, step))
            self._optimizer.zero_grad()
            yield float(loss.detach())


def require_words(code: str, *words: str) -> None:
    """The remedy says what this test does."""
    for word in words:
        assert word in kind_of(code).remedy, f"the remedy of {code} no longer speaks of {word}: follow what it says"


@pytest.mark.remedy("alert:loss_not_finite")
def test_a_loss_that_is_no_number_is_one_in_a_new_run_with_a_lower_rate(tmp_path: Path) -> None:
    require_words("loss_not_finite", "Else lower inner.lr in a new run")
    world = World()
    for name, rate, alerts in (("run", "1", {"loss_not_finite"}), ("new", "0.003", set[str]())):
        training = Training(tmp_path / name, f"inner.lr={rate}", "inner.weight_decay=10", "inner.min_lr_ratio=1")
        for loss in training.losses():
            world.change(losses__inner=loss)
        assert world.look() & {"loss_not_finite"} == alerts
    assert math.isfinite(loss)


@pytest.mark.remedy("alert:loss_spike")
def test_a_spike_does_not_come_back_in_a_run_from_before_with_a_lower_rate(tmp_path: Path) -> None:
    require_words("loss_spike", "start a new run from an export of an earlier round", "lower inner.lr")
    usual = Training(tmp_path / "before", "inner.lr=0.003", "inner.min_lr_ratio=1")
    watch = LossWatch()
    for step, loss in enumerate(usual.losses(DESCENT + STEPS)):
        if step >= DESCENT:
            watch.note(loss, f"inner step {step} of phase 0")
    earlier = usual.state()
    told = {}
    for rate in ("1", "0.003"):
        seen = copy.deepcopy(watch)
        training = Training(tmp_path / rate, f"inner.lr={rate}", "inner.min_lr_ratio=1", start=earlier)
        for step, loss in enumerate(training.losses()):
            seen.note(loss, f"inner step {step} of phase 1")
        told[rate] = seen.text
    assert "of phase 1" in told["1"], "the text says where it began"
    assert not told["0.003"]


@pytest.mark.remedy("alert:trainer_idle")
@pytest.mark.parametrize("change", ["strategy.inner_steps", "codec", "link"])
def test_trainers_that_wait_are_busy_in_the_next_run(change: str) -> None:
    """By the plan that an operator would ask first; its formula is held against measurements in docs/planning.md."""
    require_words("trainer_idle", "Raise strategy.inner_steps in the next run", "a coarser codec", "faster link")
    slow = {"--link": "1M", "strategy.inner_steps": "8", "strategy.codec": "fp32"}
    changed = {
        "strategy.inner_steps": {"strategy.inner_steps": "100"},
        "codec": {"strategy.codec": "int2"},
        "link": {"--link": "1G"},
    }[change]
    for fields, alerts in ((slow, {"trainer_idle"}), (slow | changed, set[str]())):
        world = World()
        world.change(state="joining")  # rounds do not matter here
        assert world.work(200, idle_share(fields)) == alerts


def idle_share(fields: Mapping[str, str]) -> float:
    """Part of a round that trainers wait, as `dilocoxd plan` says."""
    fields = {"strategy.late_policy": "wait", "strategy.extend_steps_max": "0", **fields}
    given = [(name, value) if name.startswith("--") else ("--set", f"{name}={value}") for name, value in fields.items()]
    options = [part for pair in given for part in pair]
    told = invoke("plan", "tiny", "--sites", "2", "--rtt", "1ms", "--step-time", "50ms", "--json", *options).output
    return 1.0 - float(json.loads(told)["pace"]["utilisation"])
