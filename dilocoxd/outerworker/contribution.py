"""This site's own part of a round: form the contribution, reduce owned segments, settle the error feedback.

While a contribution is in flight FEEDBACK holds d = beta e + u itself, so leaving it out of a round costs nothing and
loses not one bit; an included one leaves r = d - own. Arithmetic: outer/passes.py, the same as in the engine.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from dilocoxd.compress.codec import NotEncodableError, chunks
from dilocoxd.errors import WireError
from dilocoxd.ids import PhaseId
from dilocoxd.ipc.fault import hold_thread
from dilocoxd.outer.clipping import ClipRule, Weighing
from dilocoxd.outer.passes import (
    SegmentPass,
    counted as counted_values,
    encode_pass,
    holds_any,
    reduce_pass,
    settle_residual_pass_,
    subtract_counted_,
    take_over_,
    weigh_pass,
)
from dilocoxd.outer.reduce import BadShareError, share_sketches
from dilocoxd.outerworker.failure import RequestFailed
from dilocoxd.outerworker.figures import square_of, square_of_difference
from dilocoxd.outerworker.journal import NO_PHASE, Saved, Update
from dilocoxd.outerworker.results.counted import Counted, counted_share
from dilocoxd.outerworker.results.reading import record_of
from dilocoxd.outerworker.results.reduced_here import ReducedHere
from dilocoxd.outerworker.results.weights import share_weights
from dilocoxd.outerworker.workspace import Workspace
from dilocoxd.wire.layout import Segment
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_parts import PartReady
from dilocoxd.wire.local.outer_worker import (
    ContributionFormed,
    FormContribution,
    OwnedSegment,
    PassReady,
    PreparePass,
    Reduce,
    SegmentReduced,
    Settle,
    Settled,
    Share,
)

OFFER_MAGNITUDE_MAX: Final = 2.0**48
"""Of d. Beyond it training has diverged; and sums over rows of low-rank factors must stay below what codecs take."""

SKETCHED_ALWAYS: Final = 1 << 16
"""Elements of segments that are small enough for a sketch each round."""


class SiteContribution:
    """FEEDBACK, OWNER_FEEDBACK, OUTBOX and what is done with them."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._has_owner_feedback = workspace.plan.has_owner_feedback
        self._checked = NO_PHASE
        """Phase whose pseudo-gradient was found finite, before it is formed."""

    def form(self, request: FormContribution) -> ContributionFormed | PartReady:
        """FEEDBACK <- d = beta e + u; OUTBOX <- first pass of d. Repeated: the same answer."""
        workspace, state = self._workspace, self._workspace.state
        started = time.monotonic()
        if state.formed_phase != request.phase:
            workspace.require(
                state.formed_phase == NO_PHASE,
                f"phase {request.phase} cannot be formed: the contribution of phase {state.formed_phase} is in flight",
            )
            workspace.require(
                request.phase > state.settled_phase,
                f"phase {request.phase} cannot be formed: phase {state.settled_phase} is settled, phases only rise",
            )
            self._require_no_settle()
            is_known = self._checked == request.phase and not request.is_check
            culprit = "" if is_known else self._unencodable()
            if culprit:
                return ContributionFormed(request.request, request.phase, False, culprit, (), 0.0, 0.0, 0.0)
            self._checked = request.phase if request.is_check else NO_PHASE
            if request.is_check:
                return PartReady(request.request)
            workspace.begin(Update.FORM, request.phase)
            self._form()
            if workspace.plan.manifest.strategy.delay not in ("phase", "eager"):
                # PHASE is filled again only after the exchange: until then its pages would be idle memory.
                workspace.buffers.clear(local_buffers.PHASE)
        if request.is_check:
            return PartReady(request.request)
        norms = workspace.figures.norms(workspace.plan.segments)
        told = b"" if workspace.plan.part.is_whole else workspace.figures.records(workspace.plan.segments)
        seconds = time.monotonic() - started
        hashes = self._outbox_hashes(0)
        return ContributionFormed(request.request, request.phase, True, "", hashes, *norms, seconds, told)

    def _outbox_hashes(self, pass_index: int) -> tuple[bytes, ...]:
        buffers = self._workspace.buffers
        return tuple(
            hashlib.sha256(buffers.whole_outbox(pass_index, s.index)).digest() for s in self._workspace.plan.segments
        )

    def prepare_pass(self, request: PreparePass) -> PassReady:
        """OUTBOX <- what d becomes in a later pass, given the results of the passes before. Changes nothing else."""
        workspace = self._workspace
        workspace.require(
            workspace.state.formed_phase != NO_PHASE and 0 < request.pass_index < workspace.plan.num_passes,
            f"pass {request.pass_index} cannot be prepared: no contribution is in flight, or there is no such pass",
        )
        workspace.report.begin("prepare", len(workspace.plan.segments))
        for segment in workspace.plan.segments:
            at = self._at(request.pass_index, segment)
            try:
                encode_pass(
                    at, workspace.feedback_of(segment), workspace.buffers.outbox(request.pass_index, segment.index)
                )
            except (WireError, NotEncodableError) as error:
                raise RequestFailed("bad_payload", f"result segment {segment.index}: {error}") from error
            workspace.report.step(segment.index)
        return PassReady(request.request, request.pass_index, self._outbox_hashes(request.pass_index))

    def _at(self, pass_index: int, segment: Segment) -> SegmentPass:
        results = self._workspace.buffers.results(pass_index, segment.index)
        return SegmentPass(self._workspace.plan.transform, pass_index, segment, results)

    def resume(self) -> None:
        """After a restart: finish an interrupted FormContribution. Settle goes on when it is asked again."""
        if self._workspace.state.operation == Update.FORM:
            self._form()

    def _unencodable(self) -> str:
        """Name of the first parameter whose d = beta e + u is NaN, Inf or too large; empty if all is well."""
        workspace = self._workspace
        beta = workspace.plan.feedback.beta
        workspace.report.begin("check", len(workspace.plan.segments))
        for segment in workspace.plan.segments:
            e, u = workspace.feedback_of(segment), workspace.phase_of(segment)
            for start, stop in chunks(segment.numel):
                d = torch.add(u[start:stop], e[start:stop], alpha=beta)
                least, largest = d.aminmax()
                if not max(-float(least), float(largest)) <= OFFER_MAGNITUDE_MAX:  # NaN is in both
                    return self._culprit(segment, start, d.abs_())
            workspace.report.step(segment.index)
        return ""

    def _culprit(self, segment: Segment, start: int, magnitudes: Tensor) -> str:
        offset = int((~(magnitudes <= OFFER_MAGNITUDE_MAX)).nonzero()[0].item())
        element = segment.start + start + offset
        pieces = self._workspace.plan.layout.pieces(segment)
        return next(piece.name for piece in pieces if piece.start <= element < piece.stop)

    def _form(self) -> None:
        workspace = self._workspace
        workspace.report.begin("form", len(workspace.plan.segments))
        for segment in workspace.plan.segments[workspace.state.position :]:
            self._form_segment(segment)
            workspace.report.step(segment.index)
        workspace.journal.write(operation=Update.NONE, formed_phase=workspace.state.argument)

    def _form_segment(self, segment: Segment) -> None:
        workspace = self._workspace

        def change() -> dict[str, object]:
            d = workspace.feedback_of(segment)
            workspace.plan.feedback.form_(d, workspace.phase_of(segment))
            norm, residual = square_of(d), 0.0
            payload = workspace.buffers.outbox(0, segment.index)
            encode_pass(self._at(0, segment), d, payload)
            if workspace.plan.num_passes == 1:
                own = workspace.scratch_of(segment)
                workspace.plan.transform.expand(segment, payload, (), own)
                residual = square_of_difference(d, own)
            workspace.figures.note_squares(segment, norm, residual)
            hold_thread("form")
            return {}

        workspace.transact(Saved.FEEDBACK, segment, change)

    def reduce(self, request: Reduce) -> SegmentReduced:
        """RESULT <- encode(weighted mean of the shares + owner residual) for one segment."""
        workspace = self._workspace
        started = time.monotonic()
        self._require_segment(request.pass_index, request.segment)
        segment = workspace.plan.layout.segments[request.segment]
        result = workspace.buffers.result(request.pass_index, segment.index)
        payloads, weights = self._shares(request.shares, request.pass_index, segment)
        has_residual = self._has_owner_feedback and workspace.buffers.has_owner_feedback(segment)
        residual = workspace.owner_feedback_of(segment) if has_residual else None
        try:
            at = self._at(request.pass_index, segment)
            weighing, record = weigh_pass(at, payloads, weights, *self._clipping(segment))
            reduce_pass(at, payloads, weighing, residual, result)
        except BadShareError as error:
            raise RequestFailed("bad_payload", str(request.shares[error.position].slot)) from error
        except (WireError, NotEncodableError) as error:
            # The shares are sound; what earlier passes left in RESULT is not.
            raise RequestFailed("bad_result", f"segment {segment.index}: {error}") from error
        whole = workspace.buffers.whole_result(request.pass_index, segment.index)
        if workspace.plan.record_bytes_of(request.pass_index):
            whole[result.nbytes :] = record.encode(workspace.plan.manifest.round.peers_max)
        digest = hashlib.sha256(whole).digest()
        sketches = self._sketches(at, payloads)
        seconds = time.monotonic() - started
        return SegmentReduced(request.request, request.pass_index, request.segment, digest, seconds, sketches)

    def _sketches(self, at: SegmentPass, payloads: list[memoryview]) -> bytes:
        """For the alarm on contrary contributions, which needs three to compare; empty where nothing is clipped. Of
        large segments a quarter, another one each round."""
        if len(payloads) < 3 or not self._workspace.plan.record_bytes_of(at.pass_index):
            return b""
        if at.segment.numel > SKETCHED_ALWAYS and (at.segment.index + self._workspace.state.round) % 4:
            return b""
        numel = at.transform.vector_numel(at.pass_index, at.segment)
        return share_sketches(at.transform.codec(at.pass_index, at.segment), payloads, numel)

    def _clipping(self, segment: Segment) -> tuple[ClipRule, list[float]]:
        """What is clipped in the entry on the present state, and the norms that entries before it recorded."""
        memory, number = self._workspace.memory, self._workspace.state.round
        rule = self._workspace.plan.clip_rule(memory.center(number, segment))
        return rule, memory.recent_norms(number, segment)

    def _counted(self, segment: Segment, weights: list[float]) -> Weighing:
        """How the entry whose results are in RESULT made a mean of shares: its record says what weighing them again
        would find. Raises WireError."""
        plan, memory, number = self._workspace.plan, self._workspace.memory, self._workspace.state.round
        record = record_of(plan, self._workspace.buffers.whole_result(plan.num_passes - 1, segment.index))
        factors = record.factors[: len(weights)]
        is_whole = all(factor == 1.0 for factor in factors)
        return Weighing(weights, () if is_whole else factors, memory.center(number, segment))

    def settle(self, request: Settle) -> Settled:
        """The fate of the contribution of `phase`. Repeated: no effect."""
        workspace, state = self._workspace, self._workspace.state
        is_resumed = state.operation == Update.SETTLE and state.argument == request.phase
        if not is_resumed:
            if state.formed_phase != request.phase:
                workspace.require(
                    state.settled_phase == request.phase and state.settled_included == request.is_included,
                    f"phase {request.phase} cannot be settled: it is not in flight",
                )
                return Settled(request.request, request.phase)
            self._require_no_settle()
        for owned in request.owned:
            self._require_segment(owned.pass_index, owned.segment)
        mine = tuple(owned for owned in request.owned if workspace.plan.holds(owned.segment))
        if not is_resumed:
            # Fate and operation in one write: a restarted worker must know which of the two it was doing.
            workspace.begin(Update.SETTLE, request.phase, settled_included=request.is_included)
        if request.is_included:
            with counted_share(workspace, request) as counted:
                self._settle_feedback(ReducedHere.of(request.owned, workspace.plan.num_passes - 1), counted)
            self._settle_owned(mine)
        elif request.forgets or workspace.plan.keeps_progress:
            self._forget()
        self._finish_settle()
        workspace.buffers.clear_outbox()
        for owned in mine:
            for share in owned.shares:
                workspace.buffers.release_share(share, owned.pass_index, owned.segment)
        return Settled(request.request, request.phase)

    def _settle_feedback(self, duty: ReducedHere, counted: Counted) -> None:
        workspace = self._workspace
        workspace.report.begin("settle", len(workspace.plan.segments))
        for segment in workspace.plan.segments[workspace.state.position :]:
            is_former = duty.weight > 0 and segment.index not in duty.segments
            is_former = is_former and self._has_owner_feedback and workspace.buffers.has_owner_feedback(segment)
            self._settle_segment(
                segment, duty.weight if is_former else 0.0, counted, duty.shares.get(segment.index, ())
            )
            workspace.report.step(segment.index)

    def _forget(self) -> None:
        """FEEDBACK <- 0."""
        workspace = self._workspace
        workspace.report.begin("forget", len(workspace.plan.segments))
        for segment in workspace.plan.segments[workspace.state.position :]:
            workspace.feedback_of(segment).zero_()
            workspace.journal.write(position=workspace.state.position + 1)
            workspace.report.step(segment.index)

    def _settle_segment(self, segment: Segment, takes_over: float, counted: Counted, shares: Sequence[Share]) -> None:
        """`takes_over` > 0: this site, with that weight in the mean, owns the segment no more; what it still owed the
        mean as owner goes into its own feedback, so that the mean takes it once in all. `shares`: what it summed here.
        """
        workspace = self._workspace
        transform, mode = workspace.plan.transform, workspace.plan.feedback.mode
        last = workspace.plan.num_passes - 1
        results = workspace.buffers.results(last, segment.index)

        at, (factor, center) = self._at(last, segment), counted(segment)

        def change() -> dict[str, object]:
            e = workspace.feedback_of(segment)
            payload = workspace.buffers.outbox(last, segment.index)
            own = delta = None
            if mode == "paper":
                own, delta = counted_values(at, payload, factor, center), torch.empty(segment.numel)
                transform.expand(segment, workspace.buffers.result(last, segment.index), results, delta)
            if mode != "none":
                subtract_counted_(at, payload, e, factor, center)
            workspace.plan.feedback.include_(e, own, delta)
            if workspace.plan.is_gathered and mode == "local" and shares:  # none: recovery told of the entry
                self._keep_lost(segment, shares, e)
            if takes_over:
                take_over_(e, workspace.owner_feedback_of(segment), takes_over)
                workspace.buffers.release_owner_feedback(segment)
            return {}

        workspace.transact(Saved.BOTH_FEEDBACKS if takes_over else Saved.FEEDBACK, segment, change)

    def _keep_lost(self, segment: Segment, shares: Sequence[Share], e: Tensor) -> None:
        """e <- e + mean - Delta: what all of us lost when we encoded the mean. Everybody keeps all of it in its own
        feedback, so the next mean takes it once; no owner has to be trusted with it (X11)."""
        workspace, last = self._workspace, self._workspace.plan.num_passes - 1
        payloads, weights = self._shares(shares, last, segment)
        result = workspace.buffers.result(last, segment.index)
        before = e.clone()
        try:
            settle_residual_pass_(self._at(last, segment), payloads, self._counted(segment, weights), e, result)
        except WireError:
            # INBOX or RESULT no longer hold that round (taken over from peers): it is lost.
            e.copy_(before)

    def _settle_owned(self, owned: Sequence[OwnedSegment]) -> None:
        workspace = self._workspace
        first = workspace.state.position - len(workspace.plan.segments)
        workspace.report.begin("settle owned", len(owned))
        for number, item in enumerate(owned):
            if number < first:
                continue
            # The residual follows from the last pass; earlier ones only shaped what it stands for.
            if self._has_owner_feedback and item.pass_index == workspace.plan.num_passes - 1:
                self._settle_owned_segment(item)
            else:
                workspace.journal.write(position=workspace.state.position + 1)
            workspace.report.step(number)

    def _settle_owned_segment(self, owned: OwnedSegment) -> None:
        workspace = self._workspace
        segment = workspace.plan.layout.segments[owned.segment]
        payloads, weights = self._shares(owned.shares, owned.pass_index, segment)

        def change() -> dict[str, object]:
            residual = workspace.owner_feedback_of(segment)
            result = workspace.buffers.result(owned.pass_index, segment.index)
            at = self._at(owned.pass_index, segment)
            try:
                settle_residual_pass_(at, payloads, self._counted(segment, weights), residual, result)
            except WireError:
                # INBOX or RESULT no longer hold that round (taken over from peers): what we owed the mean is lost.
                residual.zero_()
            return {}

        workspace.transact(Saved.OWNER_FEEDBACK, segment, change)
        if not holds_any(workspace.owner_feedback_of(segment)):
            workspace.buffers.release_owner_feedback(segment)

    def _finish_settle(self) -> None:
        state = self._workspace.state
        self._workspace.journal.write(operation=Update.NONE, settled_phase=state.argument, formed_phase=NO_PHASE)

    def _require_no_settle(self) -> None:
        state = self._workspace.state
        self._workspace.require(
            state.operation != Update.SETTLE,
            f"Settle of phase {PhaseId(state.argument)} was interrupted and must be asked again first",
        )

    def _require_segment(self, pass_index: int, segment: int) -> None:
        self._workspace.require(
            pass_index < self._workspace.plan.num_passes and segment < self._workspace.plan.num_segments,
            f"there is no pass {pass_index} segment {segment} in this run's exchange",
        )

    def _shares(
        self, shares: Sequence[Share], pass_index: int, segment: Segment
    ) -> tuple[list[memoryview], list[float]]:
        for share in shares:
            self._workspace.require(
                share.slot < self._workspace.plan.num_inbox_slots, f"INBOX has no slot {share.slot}"
            )
        payloads = [self._workspace.buffers.share(share, pass_index, segment.index) for share in shares]
        return payloads, share_weights(self._workspace.plan, shares)
