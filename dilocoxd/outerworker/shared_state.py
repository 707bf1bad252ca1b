"""The shared state in ANCHOR and MOMENTUM: genesis, the outer step of a committed entry, its digests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch

from dilocoxd.compress.codec import MAGNITUDE_MAX
from dilocoxd.errors import WireError
from dilocoxd.ids import RoundIndex
from dilocoxd.ipc.fault import hold_thread
from dilocoxd.models import ModelConfig, init_of_model
from dilocoxd.outerworker.buffers import tensor_bytes
from dilocoxd.outerworker.failure import RequestFailed
from dilocoxd.outerworker.journal import PATH_BYTES_MAX, Saved, Update
from dilocoxd.outerworker.results.reading import Results, bodies, open_results, record_of
from dilocoxd.outerworker.schedule_memory import NO_RANKS, RankSum
from dilocoxd.outerworker.workspace import KnownLeaves, Workspace
from dilocoxd.store import snapshots
from dilocoxd.store.snapshots import SnapshotIndex
from dilocoxd.wire.layout import Segment
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_parts import AdoptState, PartStepped
from dilocoxd.wire.local.outer_worker import (
    DIFFERING_MAX,
    ApplyResult,
    BaseCopied,
    ClippedShare,
    CopyBase,
    StateReady,
    joined,
)
from dilocoxd.wire.state_digest import Leaf, Root, differing, leaf_of, root_of


class ChangeGuard(Protocol):
    """Whoever reads the shared state in the background (a snapshot) and must see a segment before it changes."""

    def before_change(self, segment: Segment) -> None: ...


def leaf_in(workspace: Workspace, segment: Segment, lowrank_r: int | None) -> Leaf:
    """Hash what the buffers hold of `segment`; `lowrank_r`: of the results that MEMORY keeps, None: none yet."""
    momentum = tensor_bytes(workspace.buffers.momentum_of(segment))
    remembered = workspace.memory.remembered(segment, lowrank_r)
    return leaf_of(segment.index, tensor_bytes(workspace.anchor_of(segment)), (momentum, *remembered))


@dataclass(frozen=True, slots=True)
class _ComeTo:
    """State `round` as far as the segments of this process make it."""

    round: int
    leaves: tuple[Leaf, ...] = ()
    ranks: RankSum = NO_RANKS


class SharedState:
    """Operations on the shared state."""

    def __init__(self, workspace: Workspace, guard: ChangeGuard) -> None:
        self._workspace = workspace
        self._guard = guard
        self._clipped: dict[int, ClippedShare] = {}
        """Of the last entry, by place."""
        self._replaced = KnownLeaves()
        """What was held when another state was loaded over it."""
        self._differing: tuple[int, ...] = ()
        """Segments of the state now held whose bits were other ones before it was loaded anew."""
        self._checked: ApplyResult | None = None
        self._come: _ComeTo | None = None
        """One of several parts: what its segments already are, and the journal does not say yet."""

    def ready(self, request: int, started: float) -> StateReady:
        """The answer that says what the buffers hold."""
        workspace, state = self._workspace, self._workspace.state
        schedule = workspace.memory.header(state.round).schedule if state.is_loaded else workspace.plan.schedule.start
        return StateReady(
            request,
            state.is_loaded,
            RoundIndex(state.round),
            state.anchor_sha256,
            state.state_digest,
            time.monotonic() - started,
            schedule.lowrank_r,
            schedule.inner_steps,
            schedule.next_lowrank_r,
            schedule.next_inner_steps,
            schedule.shared_steps,
            tuple(self._clipped[place] for place in sorted(self._clipped)),
            self._differing[:DIFFERING_MAX],
            len(self._differing),
        )

    def stepped(self, request: int, started: float) -> PartStepped:
        """The answer of a part, whose state counts when all others have come as far."""
        workspace, come = self._workspace, self._come or _ComeTo(self._workspace.state.round)
        figures = workspace.figures.records(workspace.plan.segments)
        header = b"" if workspace.state.is_loaded else workspace.memory.digested_header(come.round)
        return PartStepped(request, RoundIndex(come.round), time.monotonic() - started, *come.ranks, figures, header)

    def resume(self) -> None:
        """After a restart: learn again what the state says, and finish an interrupted ApplyResult or CopyBase."""
        state = self._workspace.state
        if state.is_loaded:
            # Where an update was interrupted some results are new already: what is learnt of them here is learnt again.
            self._workspace.tune(is_fresh=state.operation != Update.APPLY)
        if state.operation == Update.COPY_BASE:
            self._copy_base()
        elif state.operation == Update.APPLY:
            try:
                self._apply()
            except (OSError, RequestFailed, WireError):
                # The payload's file is gone meanwhile. The daemon loads a snapshot and replays the log instead.
                self._workspace.journal.write(is_loaded=False, operation=Update.NONE)

    def require_genesis(self) -> None:
        """Raise RequestFailed if the run does not start from numbers that every site draws itself."""
        if self._workspace.plan.manifest.init.state_digest:
            raise RequestFailed(
                "corrupt_snapshot",
                "this run starts from pretrained weights, and snapshot 0 is not here; join again with"
                " `dilocoxd join ADDR --dir ANOTHER`, which fetches it",
            )

    def genesis(self) -> None:
        """Fill the buffers with shared state 0, the same bits at every site."""
        workspace = self._workspace
        self.require_genesis()
        model = ModelConfig.of_run(workspace.plan.manifest)
        self.begin_replace()
        layout, (start, stop) = workspace.plan.layout, workspace.plan.stretch
        workspace.report.begin("genesis", layout.numel)
        seed = workspace.plan.manifest.seeds.model
        for param in layout.params:
            span = layout.span(param.name)
            first, last = max(span.start, start), min(span.stop, stop)
            if first < last:
                out, told = workspace.buffers.anchor[first:last], partial(workspace.report.step, span.start)
                init_of_model(model, param, seed, out, told, first=first - span.start)
        workspace.buffers.clear(local_buffers.MOMENTUM)
        workspace.memory.begin()
        self.finish_replace(0)

    def begin_replace(self) -> None:
        """From here to `finish_replace` the buffers hold no state."""
        for segment in self._workspace.plan.segments:
            self._guard.before_change(segment)
        known, self._differing = self._workspace.leaves, ()
        if self._workspace.state.is_loaded and known.round >= self._replaced.round:
            self._replaced = known
        self._workspace.leaves, self._come = KnownLeaves(), None
        self._workspace.journal.write(is_loaded=False, operation=Update.NONE)

    def finish_replace(self, round_index: int, expected: SnapshotIndex | None = None) -> None:
        """Digest what the buffers now hold and declare it to be state `round_index`.

        Raises RequestFailed(corrupt_snapshot), naming the segments, unless it is the state that `expected` says.
        """
        workspace = self._workspace
        leaves = []
        workspace.report.begin("digest", len(workspace.plan.segments))
        workspace.memory.check(round_index)
        lowrank_r = workspace.memory.lowrank_of_results(round_index)
        for segment in workspace.plan.segments:
            leaves.append(workspace.figures.note_leaf(segment, leaf_in(workspace, segment, lowrank_r)))
            workspace.report.step(segment.index)
        come = _ComeTo(round_index, tuple(leaves))
        if not workspace.plan.part.is_whole:
            self._come = come
            return  # AdoptState comes when the daemon has compared what all parts have with what is expected
        root = self._root(come)
        lengths = [segment.numel for segment in workspace.plan.segments]
        problem = snapshots.disagreement(expected, root, leaves, lengths) if expected is not None else ""
        if problem:
            raise RequestFailed("corrupt_snapshot", problem)
        self._declare_loaded(come)

    def _root(self, come: _ComeTo) -> Root:
        return root_of(come.round, self._workspace.memory.digested_header(come.round), come.leaves)

    def _declare_loaded(self, come: _ComeTo) -> None:
        self._workspace.journal.write(is_loaded=True, round=come.round, **self._root(come)._asdict())
        self._know(come.round, come.leaves)
        self._workspace.tune(is_fresh=True)

    def adopt(self, request: AdoptState) -> None:
        """One of several parts: all have come to this state. Repeated: no effect."""
        come, state = self._come, self._workspace.state
        if state.is_loaded and state.round == request.round and state.operation == Update.NONE:
            return
        if come is None or come.round != request.round:
            raise RequestFailed("bad_request", f"this part has not come to state {request.round}")
        if state.is_loaded:
            self._declare_applied(come, RankSum(request.rank_sum, request.num_ranks))
        else:
            self._declare_loaded(come)

    def _know(self, round_index: int, leaves: Sequence[Leaf]) -> None:
        """The state is this; what was held before under the same number is compared with it."""
        self._come = None
        self._workspace.leaves = KnownLeaves(round_index, tuple(leaf.whole for leaf in leaves))
        if self._replaced.round == round_index:
            places = differing(self._replaced.whole, self._workspace.leaves.whole)
            self._differing = tuple(self._workspace.plan.segments[place].index for place in places)
            self._replaced = KnownLeaves()

    def apply(self, request: ApplyResult) -> None:
        """Outer step: state `round` -> `round + 1`. An undecodable payload is found before anything changes."""
        workspace = self._workspace
        self.check_entry(request)
        if self._is_applied(request.round):
            return
        workspace.begin(Update.APPLY, request.round, path=request.path, offset=request.offset)
        try:
            self._apply()
        except (OSError, RequestFailed, WireError) as error:
            raise self._given_up(request.round, error) from error

    def _given_up(self, round_index: int, error: Exception) -> RequestFailed:
        """The payload passed the check, and cannot be read now: ends the entry. What to answer."""
        workspace = self._workspace
        workspace.undo_torn_step()
        workspace.memory.take_ranks()
        is_begun = workspace.state.position > 0
        workspace.journal.write(is_loaded=not is_begun, operation=Update.NONE)
        if is_begun:
            return RequestFailed("not_loaded", f"entry {round_index} is half applied; load a state: {error}")
        return RequestFailed("store", f"payload of entry {round_index}: {error}")

    def _is_applied(self, round_index: int) -> bool:
        """Nothing is left to do of this entry, here."""
        has_come = self._come is not None and self._come.round == round_index + 1
        return self._workspace.state.round == round_index + 1 or has_come

    def check_entry(self, request: ApplyResult) -> None:
        """Raise RequestFailed unless the entry can be applied, or is. What a check found right is not looked at again
        when it is done; another check looks anew."""
        workspace = self._workspace
        workspace.require_loaded()
        if self._is_applied(request.round):
            return
        workspace.require(
            workspace.state.round == request.round,
            f"entry {request.round} does not apply to state {workspace.state.round}",
        )
        self._require_lowrank(request)
        workspace.require(len(request.path.encode()) <= PATH_BYTES_MAX, "the payload's path is too long; shorten it")
        checked, self._checked = self._checked, None
        if request.is_check or checked is None or replace(checked, request=request.request, is_check=False) != request:
            try:
                self._check_payload(request.path, request.offset)
            except OSError as error:
                raise RequestFailed("store", f"payload of entry {request.round}: {error}") from error
        self._checked = request if request.is_check else None

    def _require_lowrank(self, request: ApplyResult) -> None:
        expected = self._workspace.buffers.lowrank_r
        self._workspace.require(
            request.lowrank_r == expected,
            f"entry {request.round} has low rank {request.lowrank_r}, the state before it says {expected}",
        )

    def _check_payload(self, path: str, offset: int) -> None:
        workspace = self._workspace
        workspace.report.begin("check", len(workspace.plan.segments))
        with open_results(workspace, path, offset, workspace.buffers.lowrank_r) as results:
            for segment in workspace.plan.segments:
                found = results(segment)
                try:
                    self._decode_all(segment, bodies(workspace.plan, found))
                    record_of(workspace.plan, found[-1])
                except WireError as error:
                    raise RequestFailed("bad_payload", f"result segment {segment.index}: {error.detail}") from error
                workspace.report.step(segment.index)

    def _decode_all(self, segment: Segment, results: Sequence[memoryview]) -> None:
        transform = self._workspace.plan.transform
        for index, payload in enumerate(results):
            numel = transform.vector_numel(index, segment)
            vector = self._workspace.scratch[:numel] if numel <= self._workspace.scratch.numel() else torch.empty(numel)
            transform.codec(index, segment).decode(payload, vector)

    def check_result(self) -> None:
        """Raise RequestFailed(bad_payload) unless every segment in RESULT decodes."""
        self._check_payload("", 0)

    def _apply(self) -> None:
        workspace = self._workspace
        done = workspace.state.position
        leaves = []
        self._clipped.clear()
        self._differing = ()
        workspace.report.begin("apply", len(workspace.plan.segments))
        place = (workspace.state.path, workspace.state.offset, workspace.buffers.lowrank_r)
        with open_results(workspace, *place) as results:
            for position, segment in enumerate(workspace.plan.segments):
                found = results(segment)
                if position >= done:
                    self._step(segment, found)
                self._note_clipped(found[-1])
                workspace.plan.transform.learn(segment, bodies(workspace.plan, found))
                leaf = leaf_in(workspace, segment, workspace.buffers.lowrank_r)
                leaves.append(workspace.figures.note_leaf(segment, leaf))
                workspace.report.step(segment.index)
        come = _ComeTo(workspace.state.argument + 1, tuple(leaves), workspace.memory.take_ranks())
        if workspace.plan.part.is_whole:
            self._declare_applied(come, come.ranks)
        else:
            self._come = come

    def _declare_applied(self, come: _ComeTo, ranks: RankSum) -> None:
        """`ranks`: of all parts."""
        workspace = self._workspace
        workspace.memory.advance(come.round - 1, ranks)
        workspace.journal.write(operation=Update.NONE, round=come.round, **self._root(come)._asdict())
        self._know(come.round, come.leaves)
        workspace.tune()

    def _note_clipped(self, result: memoryview) -> None:
        plan = self._workspace.plan
        for place, factor in enumerate(record_of(plan, result).factors):
            if factor < 1:
                before = self._clipped.get(place, ClippedShare(place, 0, 0.0))
                is_dropped = plan.drops_contrary and not factor
                norms = 0.0 if is_dropped else plan.clip_kappa / factor if factor else MAGNITUDE_MAX
                segment = ClippedShare(place, 1, norms, is_dropped / plan.num_segments)
                self._clipped[place] = joined(before, segment, plan.num_segments)

    def _step(self, segment: Segment, results: Results) -> None:
        workspace = self._workspace
        self._guard.before_change(segment)
        delta = workspace.scratch_of(segment)
        *before, last = bodies(workspace.plan, results)
        workspace.plan.transform.expand(segment, last, before, delta)

        def change() -> dict[str, object]:
            transform, here = workspace.plan.transform, workspace.plan.transform.touched(segment)
            slots = [slot[here] for slot in workspace.buffers.slots_of(segment)]
            steps_before = transform.steps_before(workspace.state.argument)
            workspace.plan.optimizer.step_(workspace.anchor_of(segment)[here], slots, delta[here], steps_before)
            workspace.memory.keep(workspace.state.argument, segment, [memoryview(result) for result in results])
            hold_thread("apply")
            return {}

        workspace.transact(Saved.STATE, segment, change)

    def copy_base(self, request: CopyBase) -> BaseCopied:
        """PHASE <- ANCHOR."""
        workspace = self._workspace
        workspace.require_loaded()
        workspace.begin(Update.COPY_BASE, workspace.state.round)
        self._copy_base()
        return BaseCopied(request.request, RoundIndex(workspace.state.round))

    def _copy_base(self) -> None:
        workspace = self._workspace
        workspace.report.begin("copy", len(workspace.plan.segments))
        for segment in workspace.plan.segments:
            workspace.phase_of(segment).copy_(workspace.anchor_of(segment))
            workspace.report.step(segment.index)
        workspace.journal.write(operation=Update.NONE)
