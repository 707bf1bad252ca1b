"""This site's own part of a round: form the contribution, reduce owned segments, settle the error feedback."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from dilocoxd.compress.codec import MAGNITUDE_MAX, chunks
from dilocoxd.errors import WireError
from dilocoxd.ids import PhaseId
from dilocoxd.outer.feedback import restore_excluded_, subtract_own_
from dilocoxd.outer.reduce import BadShareError, reduce_segment, settle_residual_
from dilocoxd.outer.rounding import mean_weights
from dilocoxd.outerworker.core import Core
from dilocoxd.outerworker.failure import RequestFailed
from dilocoxd.outerworker.journal import NO_PHASE, Operation, Saved
from dilocoxd.outerworker.plan import NUM_PASSES
from dilocoxd.wire import local
from dilocoxd.wire.layout import Segment
from dilocoxd.wire.local import (
    ContributionFormed,
    FormContribution,
    OwnedSegment,
    Reduce,
    Reduced,
    Settle,
    Settled,
    Share,
)


class SiteContribution:
    """FEEDBACK, OWNER_FEEDBACK, OUTBOX and what is done with them."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._has_owner_feedback = core.plan.feedback.mode != "none"

    def form(self, request: FormContribution) -> ContributionFormed:
        """d = beta e + u; OUTBOX <- encode(d); FEEDBACK <- d - what others decode. Repeated: the same answer."""
        core, state = self._core, self._core.state
        started = time.monotonic()
        if state.formed_phase != request.phase:
            core.require(
                state.formed_phase == NO_PHASE,
                f"phase {request.phase} cannot be formed: the contribution of phase {state.formed_phase} is in flight",
            )
            core.require(
                request.phase > state.settled_phase,
                f"phase {request.phase} cannot be formed: phase {state.settled_phase} is settled, phases only rise",
            )
            self._require_no_settle()
            culprit = self._unencodable()
            if culprit:
                return ContributionFormed(request.request, request.phase, False, culprit, (), 0.0, 0.0, 0.0)
            fresh = {"partial_norm_square": 0.0, "partial_residual_square": 0.0}
            core.begin(Operation.FORM, request.phase, **fresh)
            self._form()
            if core.plan.manifest.strategy.delay != "phase":
                # PHASE is filled again only after the exchange: until then its pages would be idle memory.
                core.buffers.clear(local.PHASE)
        state = core.state
        return ContributionFormed(
            request.request,
            request.phase,
            True,
            "",
            self.outbox_hashes(),
            math.sqrt(state.norm_square),
            math.sqrt(state.residual_square),
            time.monotonic() - started,
        )

    def outbox_hashes(self) -> tuple[bytes, ...]:
        """sha256 of each segment's own payload."""
        buffers = self._core.buffers
        return tuple(hashlib.sha256(buffers.outbox(s.index)).digest() for s in self._core.plan.segments)

    def resume(self) -> None:
        """After a restart: finish FormContribution, or Settle if it needs nothing but the journal."""
        state = self._core.state
        if state.operation == Operation.FORM:
            self._form()
        elif state.operation == Operation.SETTLE and not state.settled_included:
            self._settle_feedback(is_included=False)
            self._finish_settle()

    def _unencodable(self) -> str:
        """Name of the first parameter whose d = beta e + u is NaN, Inf or too large; empty if all is well."""
        core = self._core
        beta = core.plan.feedback.beta
        core.report.begin("check", len(core.plan.segments))
        for segment in core.plan.segments:
            e, u = core.feedback_of(segment), core.phase_of(segment)
            for start, stop in chunks(segment.numel):
                d = torch.add(u[start:stop], e[start:stop], alpha=beta)
                if not bool((d.abs_().amax() <= MAGNITUDE_MAX).item()):
                    return self._culprit(segment, start, d)
            core.report.step(segment.index)
        return ""

    def _culprit(self, segment: Segment, start: int, magnitudes: Tensor) -> str:
        offset = int((~(magnitudes <= MAGNITUDE_MAX)).nonzero()[0].item())
        element = segment.start + start + offset
        pieces = self._core.plan.layout.pieces(segment)
        return next(piece.name for piece in pieces if piece.start <= element < piece.stop)

    def _form(self) -> None:
        core = self._core
        core.report.begin("form", len(core.plan.segments))
        for segment in core.plan.segments[core.state.position :]:
            self._form_segment(segment)
            core.report.step(segment.index)
        state = core.state
        core.journal.write(
            operation=Operation.NONE,
            formed_phase=state.argument,
            norm_square=state.partial_norm_square,
            residual_square=state.partial_residual_square,
        )

    def _form_segment(self, segment: Segment) -> None:
        core = self._core

        def change() -> dict[str, object]:
            d = core.feedback_of(segment)
            core.plan.feedback.form_(d, core.phase_of(segment))
            norm = core.state.partial_norm_square + _square(d)
            payload = core.buffers.outbox(segment.index)
            core.plan.codec.encode(d, payload)
            subtract_own_(d, core.plan.codec, payload)
            residual = core.state.partial_residual_square + _square(d)
            return {"partial_norm_square": norm, "partial_residual_square": residual}

        core.transact(Saved.FEEDBACK, segment, change)

    def reduce(self, request: Reduce) -> Reduced:
        """RESULT <- encode(weighted mean of the shares + owner residual) for one segment."""
        core = self._core
        started = time.monotonic()
        self._require_segment(request.pass_index, request.segment)
        segment = core.plan.segments[request.segment]
        result = core.buffers.result(segment.index)
        payloads, weights = self._shares(request.shares, segment)
        residual = core.owner_feedback_of(segment) if self._has_owner_feedback else None
        try:
            reduce_segment(core.plan.codec, payloads, weights, residual, core.scratch_of(segment), result)
        except BadShareError as error:
            raise RequestFailed("bad_payload", str(request.shares[error.position].slot)) from error
        digest = hashlib.sha256(result).digest()
        return Reduced(request.request, request.pass_index, request.segment, digest, time.monotonic() - started)

    def settle(self, request: Settle) -> Settled:
        """The fate of the contribution of `phase`. Repeated: no effect."""
        core, state = self._core, self._core.state
        is_resumed = state.operation == Operation.SETTLE and state.argument == request.phase
        if not is_resumed:
            if state.formed_phase != request.phase:
                core.require(
                    state.settled_phase == request.phase and state.settled_included == request.is_included,
                    f"phase {request.phase} cannot be settled: it is not in flight",
                )
                return Settled(request.request, request.phase)
            self._require_no_settle()
        for owned in request.owned:
            self._require_segment(owned.pass_index, owned.segment)
        if not is_resumed:
            # Fate and operation in one write: a restarted worker must know which of the two it was doing.
            core.begin(Operation.SETTLE, request.phase, settled_included=request.is_included)
        self._settle_feedback(is_included=request.is_included)
        if request.is_included:
            self._settle_owned(request.owned)
        self._finish_settle()
        core.buffers.clear(local.OUTBOX)
        for owned in request.owned:
            for share in owned.shares:
                core.buffers.release_share(share, owned.segment)
        return Settled(request.request, request.phase)

    def _settle_feedback(self, *, is_included: bool) -> None:
        core = self._core
        if is_included and core.plan.feedback.mode == "local":
            # The residual stands: nothing to do, but the position counts on.
            core.journal.write(position=max(core.state.position, len(core.plan.segments)))
            return
        core.report.begin("settle", len(core.plan.segments))
        for segment in core.plan.segments[core.state.position :]:
            self._settle_segment(segment, is_included=is_included)
            core.report.step(segment.index)

    def _settle_segment(self, segment: Segment, *, is_included: bool) -> None:
        core = self._core
        codec = core.plan.codec

        def change() -> dict[str, object]:
            r = core.feedback_of(segment)
            payload = core.buffers.outbox(segment.index)
            if not is_included:
                restore_excluded_(r, codec, payload)
            elif core.plan.feedback.mode == "none":
                core.plan.feedback.include_(r)
            else:
                own, delta = core.scratch_of(segment), torch.empty(segment.numel)
                codec.decode(payload, own)
                codec.decode(core.buffers.result(segment.index), delta)
                core.plan.feedback.include_(r, own, delta)
            return {}

        core.transact(Saved.FEEDBACK, segment, change)

    def _settle_owned(self, owned: Sequence[OwnedSegment]) -> None:
        core = self._core
        first = core.state.position - len(core.plan.segments)
        core.report.begin("settle owned", len(owned))
        for number, item in enumerate(owned):
            if number < first:
                continue
            if self._has_owner_feedback:
                self._settle_owned_segment(item)
            core.report.step(number)

    def _settle_owned_segment(self, owned: OwnedSegment) -> None:
        core = self._core
        segment = core.plan.segments[owned.segment]
        payloads, weights = self._shares(owned.shares, segment)

        def change() -> dict[str, object]:
            residual = core.owner_feedback_of(segment)
            result = core.buffers.result(segment.index)
            try:
                settle_residual_(core.plan.codec, payloads, weights, residual, result)
            except WireError:
                # INBOX or RESULT no longer hold that round (taken over from peers): what we owed the mean is lost.
                residual.zero_()
            return {}

        core.transact(Saved.OWNER_FEEDBACK, segment, change)

    def _finish_settle(self) -> None:
        state = self._core.state
        self._core.journal.write(operation=Operation.NONE, settled_phase=state.argument, formed_phase=NO_PHASE)

    def _require_no_settle(self) -> None:
        state = self._core.state
        self._core.require(
            state.operation != Operation.SETTLE,
            f"Settle of phase {PhaseId(state.argument)} was interrupted and must be asked again first",
        )

    def _require_segment(self, pass_index: int, segment: int) -> None:
        self._core.require(
            pass_index < NUM_PASSES and segment < len(self._core.plan.segments),
            f"this run has {NUM_PASSES} pass of {len(self._core.plan.segments)} segments, not pass {pass_index}"
            f" segment {segment}",
        )

    def _shares(self, shares: Sequence[Share], segment: Segment) -> tuple[list[memoryview], list[float]]:
        for share in shares:
            self._core.require(share.slot < self._core.plan.num_inbox_slots, f"INBOX has no slot {share.slot}")
        payloads = [self._core.buffers.share(share, segment.index) for share in shares]
        return payloads, mean_weights([share.tokens for share in shares])


def _square(values: Tensor) -> float:
    """Sum of squares in float64, in chunks of fixed size so that a resumed sum has the same bits."""
    total = 0.0
    for start, stop in chunks(values.numel()):
        piece = values[start:stop].double()
        total += float(torch.dot(piece, piece).item())
    return total
