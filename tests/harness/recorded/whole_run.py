"""A whole run again in one process: trainers without pipeline or daemon, the engine of tests/reference, no network.

What was decided (who took part in which entry, with how many inner steps from which anchor) comes from a log, who
reduced which segment from the recordings, and when the trainers merged from what they told; every number is derived
again from the manifest's seeds. So equal digests show that daemons, exchange, outer workers and pipelines compute what
the engine computes, bit for bit (issue 4, shown 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dilocoxd.compress.deferred import Deferred
from dilocoxd.compress.lowrank import LowRank
from dilocoxd.config.manifest import Manifest
from dilocoxd.ipc.client import PEER_VARIABLE, RUN_DIRECTORY_VARIABLE
from dilocoxd.models import build_stage, cut_stages, init_parameter, init_std
from dilocoxd.outer.rounding import age_factor
from dilocoxd.outer.schedule import measured_rank
from dilocoxd.outerworker.buffers import tensor_bytes
from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.outerworker.schedule_memory import Header
from dilocoxd.swarm.discovery.identity import load
from dilocoxd.trainer.data import prepare
from dilocoxd.trainer.data.order import BatchOrder
from dilocoxd.trainer.data.targets import cross_entropy
from dilocoxd.trainer.optimizer import InnerOptimizer, clip_factor, gradient_sum_of_squares, scale_gradients
from dilocoxd.trainer.parameters.flat import FlatParameters
from dilocoxd.trainer.parameters.mixing import MixedParameters
from dilocoxd.trainer.parameters.overlay import EagerParameters
from dilocoxd.trainer.settings import load_settings
from dilocoxd.wire.clip_record import NORMS_KEPT
from dilocoxd.wire.entry import Contribution, Entry
from dilocoxd.wire.layout import Segment
from tests.harness.recorded.segment_owners import Owners
from tests.harness.running.daemon_that_logs_anchors import Take, takes_of
from tests.reference.engine import Engine, Offer, Recipe
from tests.reference.state_digest import state_digest


@dataclass(frozen=True, slots=True)
class SharedStep:
    """What a phase starts from. `num_contributors`: of the entry that made it, with those it missed; 0 at genesis."""

    anchor: Tensor
    shared_steps: int
    num_contributors: int


class ReferenceTrainer:
    """Inner steps of one site, all stages in this process one after the other."""

    def __init__(self, run_dir: Path, plan: OuterPlan) -> None:
        peer = load(run_dir / "identity.key").peer_id
        settings = load_settings({RUN_DIRECTORY_VARIABLE: str(run_dir), PEER_VARIABLE: peer})
        spans = cut_stages(settings.model, settings.pipeline.num_stages)
        self._stages = [build_stage(settings.model, span, device=torch.device("cpu")) for span in spans]
        self._params = [[param for _, param in stage.global_parameters()] for stage in self._stages]
        own = [pair for stage in self._stages for pair in stage.global_parameters()]
        self._flat = FlatParameters(own, plan.layout)
        strategy = plan.manifest.strategy
        if strategy.delay == "eager":
            self._flat = EagerParameters(own, plan.layout, plan.optimizer)
        if strategy.delay == "streaming":
            self._flat = MixedParameters(own, plan.layout, strategy.fragments, strategy.mix_alpha)
        self._takes = takes_of(run_dir) if strategy.delay in ("arrival", "streaming") else None
        self._optimizers = [InnerOptimizer(dict(s.global_parameters()), settings.optimizer) for s in self._stages]
        data = prepare(settings.data, settings.tokenizer, settings.cache_dir, lambda text: None)
        self._order = BatchOrder(data, settings.model.seq_len, seed=settings.data_seed, peer=settings.data_stream)
        self._settings = settings
        self._step = self._shared_step = 0

    def update_of_phase(self, states: Sequence[SharedStep], done: Contribution, included: dict[int, int]) -> Tensor:
        """Pseudo-gradient of the phase that `done` names; phases of a site come in their order.

        `included`: entries that took this site's earlier contributions, by phase.
        """
        state, inner_steps = states[done.base_round], done.inner_steps
        anchor = state.anchor
        if self._takes is not None:
            return self._update_with_takes(states, done, included)
        if self._step:
            self._flat.begin(anchor, state.num_contributors)
        else:
            self._flat.replace(anchor)
        self._shared_step = max(self._shared_step, state.shared_steps)
        for _ in range(inner_steps):
            self._train_step()
        update = anchor.clone()
        self._flat.subtract_from(update)
        return update

    def _update_with_takes(self, states: Sequence[SharedStep], done: Contribution, included: dict[int, int]) -> Tensor:
        assert self._takes is not None
        takes = self._takes.get(done.phase, [])
        # Steps before the state was replaced under the trainers are not claimed.
        steps = done.inner_steps + max((t.inner_step for t in takes if t.how == "replace"), default=0)
        for step in range(steps + 1):
            for take in (t for t in takes if t.inner_step == step):
                self._take(states[take.round], take, included)
            if step < steps:
                self._train_step()
        update = states[done.base_round].anchor.clone()
        self._flat.subtract_from(update)
        self._flat.mark_base()
        return update

    def _take(self, state: SharedStep, take: Take, included: dict[int, int]) -> None:
        if isinstance(self._flat, MixedParameters) and take.how == "mix":
            self._flat.mix(state.anchor, included.get(take.phase - 1))
        elif take.how == "merge":
            self._flat.merge(state.anchor)
        else:
            self._flat.replace(state.anchor)
        self._shared_step = max(self._shared_step, state.shared_steps)

    def _train_step(self) -> None:
        settings, pipeline = self._settings, self._settings.pipeline
        batch, parts = pipeline.batch_sequences, pipeline.num_microbatches
        ids_BT, targets_BT = self._order.batch(self._step * batch, batch)
        for ids, targets in zip(ids_BT.tensor_split(parts), targets_BT.tensor_split(parts), strict=True):
            hidden = ids
            with torch.autocast("cpu", torch.bfloat16, enabled=pipeline.is_bfloat16):
                for stage in self._stages:
                    hidden = stage(hidden)
            cross_entropy(hidden, targets).backward()  # type: ignore[no-untyped-call]
        for params in self._params:
            for param in params:
                assert param.grad is not None
                param.grad.div_(parts)
        factor = clip_factor(sum(map(gradient_sum_of_squares, self._params)), settings.optimizer.clip_norm)
        for params, optimizer in zip(self._params, self._optimizers, strict=True):
            scale_gradients(params, factor)
            optimizer.step(settings.optimizer.learning_rate(self._shared_step, self._step))
            optimizer.zero_grad()
        self._step += 1
        self._shared_step += 1


class ScheduledEngine:
    """The engine with all that the shared state of a run has: anchor, slots, schedule, what low rank remembers."""

    def __init__(self, plan: OuterPlan, anchor: Tensor, peers: Iterable[str]) -> None:
        recipe = Recipe(
            plan.transform,
            plan.optimizer,
            plan.feedback,
            plan.feedback.mode != "none",
            plan.keeps_progress,
            plan.manifest.strategy.participation_rounds,
            plan.clip_kappa,
            plan.is_centered,
            plan.drops_contrary,
        )
        self.engine = Engine.start(recipe, anchor, list(peers))
        self.state = plan.schedule.start
        self._plan = plan
        self._height = 0
        self._header = Header(self.state)
        plan.transform.tune(0, self.state.lowrank_r)

    def commit(self, offer: Offer, excluded: frozenset[str] = frozenset(), owners: Sequence[str] = ()) -> None:
        """One entry. `owners`: of each segment."""
        transform, lowrank_r = self._plan.transform, self.state.lowrank_r
        self.engine.commit(offer, excluded, owners)
        measured = None
        if isinstance(transform, Deferred) and isinstance(transform.inner, LowRank) and transform.inner.ranks:
            ranks = transform.inner.ranks.values()
            measured = measured_rank(sum(ranks), len(ranks), transform.inner.lowrank_r_max)
            transform.inner.ranks.clear()
        self.state = self._plan.schedule.advance(self.state, measured)
        self._header = Header(self.state, lowrank_r)
        self._height += 1
        transform.tune(self._height, self.state.lowrank_r)

    def digest(self) -> bytes:
        """What `Entry.state_digest` of the next entry must be."""
        header = self._header.encode() if self._plan.has_memory else b""
        return state_digest(self._height, header, map(self._contents, self._plan.segments))

    def _contents(self, segment: Segment) -> bytes:
        """All that the shared state has of one segment."""
        here, engine = slice(segment.start, segment.stop), self.engine
        floats = b"".join(tensor_bytes(values[here]) for values in (engine.anchor, *engine.slots))
        return floats + self._memory(segment)

    def _memory(self, segment: Segment) -> bytes:
        """What the shared state remembers of one segment: its last result, with its record, and the recorded norms."""
        plan, records = self._plan, self.engine.records.get(segment.index, [])
        kept = b""
        if plan.keeps_results and records:
            kept = self.engine.last_results[segment.index]
            kept += records[-1].encode(plan.manifest.round.peers_max) if plan.record_bytes else b""
        norms = [b"\0\0"] * (NORMS_KEPT if plan.norms_bytes else 0)
        for number, record in enumerate(records if plan.norms_bytes else ()):
            norms[number % NORMS_KEPT] = record.encode(0)[:2]
        return kept + b"".join(norms)


class ReferenceRun:
    """The shared state of a run, moved on entry by entry."""

    def __init__(self, manifest: Manifest, sites: dict[str, Path], owners: Owners) -> None:
        """`sites`: run directory by peer id, for the settings of its trainers and the name of its data order."""
        self._owners = owners
        self._plan = plan = make_plan(manifest)
        self._shared = ScheduledEngine(plan, genesis(manifest, plan), sites)
        self._trainers = {peer: ReferenceTrainer(run_dir, plan) for peer, run_dir in sites.items()}
        self._states = [SharedStep(self._shared.engine.anchor.clone(), 0, 0)]
        self._included: dict[str, dict[int, int]] = {peer: {} for peer in sites}
        self.digest = self._shared.digest

    def commit(self, entry: Entry) -> None:
        """Train what `entry` names, and exchange and apply it."""
        updates = {c.peer: self._update(c) for c in entry.contributions}
        tokens = {c.peer: c.tokens for c in entry.contributions}
        ages = {c.peer: entry.round - c.base_round for c in entry.contributions}
        late = {peer: age_factor(age, self._plan.age_decay, self._plan.age_expected) for peer, age in ages.items()}
        state = self._shared.state
        assert (entry.lowrank_r, entry.next_lowrank_r) == (state.lowrank_r, state.next_lowrank_r)
        assert entry.next_inner_steps == state.next_inner_steps
        owner = self._owners[entry.round]
        owners = [owner[segment.index] for segment in self._plan.segments]
        num_counted = len(entry.contributions) + self._shared.engine.missing(len(entry.contributions))
        self._shared.commit(self._shared.engine.offer(updates, tokens, factors=late), owners=owners)
        for contribution in entry.contributions:
            self._included[contribution.peer][contribution.phase] = entry.round
        steps = self._shared.state.shared_steps
        self._states.append(SharedStep(self._shared.engine.anchor.clone(), steps, num_counted))

    def _update(self, contribution: Contribution) -> Tensor:
        peer = contribution.peer
        return self._trainers[peer].update_of_phase(self._states, contribution, self._included[peer])


def genesis(manifest: Manifest, plan: OuterPlan) -> Tensor:
    """x_0."""
    anchor = torch.empty(plan.layout.numel)
    for param in plan.layout.params:
        span = plan.layout.span(param.name)
        std = init_std(param.name, manifest.model.init_std, manifest.model.num_layers)
        init_parameter(param.name, param.shape, manifest.seeds.model, anchor[span.start : span.stop], std=std)
    return anchor


def first_difference(run: ReferenceRun, entries: Iterable[Entry]) -> int | None:
    """Replay; the first entry that was not voted for on the reference's state, None if all agree."""
    for entry in entries:
        if run.digest() != entry.state_digest:
            return int(entry.round)
        run.commit(entry)
    return None
