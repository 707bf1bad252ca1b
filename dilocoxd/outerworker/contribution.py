"""This site's own part of a round: form the contribution, reduce owned segments, settle the error feedback.

While a contribution is in flight FEEDBACK holds d = beta e + u itself, so leaving it out of a round costs nothing and
loses not one bit; an included one leaves r = d - own. Arithmetic: outer/passes.py, the same as in the engine.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from dilocoxd.compress.codec import NotEncodableError, chunks
from dilocoxd.errors import WireError
from dilocoxd.ids import PhaseId
from dilocoxd.outer.passes import SegmentPass, encode_pass, reduce_pass, settle_residual_pass_, take_over_
from dilocoxd.outer.reduce import BadShareError
from dilocoxd.outer.rounding import age_factor, fp32, mean_weights, participation
from dilocoxd.outerworker.core import Core
from dilocoxd.outerworker.failure import RequestFailed
from dilocoxd.outerworker.journal import NO_PHASE, Operation, Saved
from dilocoxd.wire import local
from dilocoxd.wire.layout import Segment
from dilocoxd.wire.local import (
    ContributionFormed,
    FormContribution,
    OwnedSegment,
    PassPrepared,
    PreparePass,
    Reduce,
    Reduced,
    Settle,
    Settled,
    Share,
)

OFFER_MAGNITUDE_MAX: Final = 2.0**48
"""Of d. Beyond it training has diverged; and sums over rows of low-rank factors must stay below what codecs take."""


class SiteContribution:
    """FEEDBACK, OWNER_FEEDBACK, OUTBOX and what is done with them."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._has_owner_feedback = core.plan.feedback.mode != "none"

    def form(self, request: FormContribution) -> ContributionFormed:
        """FEEDBACK <- d = beta e + u; OUTBOX <- first pass of d. Repeated: the same answer."""
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
            if core.plan.manifest.strategy.delay not in ("phase", "eager"):
                # PHASE is filled again only after the exchange: until then its pages would be idle memory.
                core.buffers.clear(local.PHASE)
        state = core.state
        return ContributionFormed(
            request.request,
            request.phase,
            True,
            "",
            self._outbox_hashes(0),
            math.sqrt(state.norm_square),
            math.sqrt(state.residual_square),
            time.monotonic() - started,
        )

    def _outbox_hashes(self, pass_index: int) -> tuple[bytes, ...]:
        buffers = self._core.buffers
        return tuple(hashlib.sha256(buffers.outbox(pass_index, s.index)).digest() for s in self._core.plan.segments)

    def prepare_pass(self, request: PreparePass) -> PassPrepared:
        """OUTBOX <- what d becomes in a later pass, given the results of the passes before. Changes nothing else."""
        core = self._core
        core.require(
            core.state.formed_phase != NO_PHASE and 0 < request.pass_index < core.plan.num_passes,
            f"pass {request.pass_index} cannot be prepared: no contribution is in flight, or there is no such pass",
        )
        core.report.begin("prepare", len(core.plan.segments))
        for segment in core.plan.segments:
            at = self._at(request.pass_index, segment)
            try:
                encode_pass(at, core.feedback_of(segment), core.buffers.outbox(request.pass_index, segment.index))
            except (WireError, NotEncodableError) as error:
                raise RequestFailed("bad_payload", f"result segment {segment.index}: {error}") from error
            core.report.step(segment.index)
        return PassPrepared(request.request, request.pass_index, self._outbox_hashes(request.pass_index))

    def _at(self, pass_index: int, segment: Segment) -> SegmentPass:
        results = self._core.buffers.results(pass_index, segment.index)
        return SegmentPass(self._core.plan.transform, pass_index, segment, results)

    def resume(self) -> None:
        """After a restart: finish an interrupted FormContribution. Settle goes on when it is asked again."""
        if self._core.state.operation == Operation.FORM:
            self._form()

    def _unencodable(self) -> str:
        """Name of the first parameter whose d = beta e + u is NaN, Inf or too large; empty if all is well."""
        core = self._core
        beta = core.plan.feedback.beta
        core.report.begin("check", len(core.plan.segments))
        for segment in core.plan.segments:
            e, u = core.feedback_of(segment), core.phase_of(segment)
            for start, stop in chunks(segment.numel):
                d = torch.add(u[start:stop], e[start:stop], alpha=beta)
                if not bool((d.abs_().amax() <= OFFER_MAGNITUDE_MAX).item()):
                    return self._culprit(segment, start, d)
            core.report.step(segment.index)
        return ""

    def _culprit(self, segment: Segment, start: int, magnitudes: Tensor) -> str:
        offset = int((~(magnitudes <= OFFER_MAGNITUDE_MAX)).nonzero()[0].item())
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
            payload = core.buffers.outbox(0, segment.index)
            encode_pass(self._at(0, segment), d, payload)
            residual = core.state.partial_residual_square
            if core.plan.num_passes == 1:
                rest = core.scratch_of(segment).copy_(d)
                core.plan.transform.subtract_expanded_(segment, payload, (), rest)
                residual += _square(rest)
            return {"partial_norm_square": norm, "partial_residual_square": residual}

        core.transact(Saved.FEEDBACK, segment, change)

    def reduce(self, request: Reduce) -> Reduced:
        """RESULT <- encode(weighted mean of the shares + owner residual) for one segment."""
        core = self._core
        started = time.monotonic()
        self._require_segment(request.pass_index, request.segment)
        segment = core.plan.segments[request.segment]
        result = core.buffers.result(request.pass_index, segment.index)
        payloads, weights = self._shares(request.shares, request.pass_index, segment)
        has_residual = self._has_owner_feedback and core.buffers.has_owner_feedback(segment)
        residual = core.owner_feedback_of(segment) if has_residual else None
        try:
            reduce_pass(self._at(request.pass_index, segment), payloads, weights, residual, result)
        except BadShareError as error:
            raise RequestFailed("bad_payload", str(request.shares[error.position].slot)) from error
        except (WireError, NotEncodableError) as error:
            # The shares are sound; what earlier passes left in RESULT is not.
            raise RequestFailed("bad_result", f"segment {segment.index}: {error}") from error
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
        if request.is_included:
            self._settle_feedback(_Duty.of(request.owned, core.plan.num_passes - 1))
            self._settle_owned(request.owned)
        elif core.plan.keeps_progress:
            self._forget()
        self._finish_settle()
        core.buffers.clear(local.OUTBOX)
        for owned in request.owned:
            for share in owned.shares:
                core.buffers.release_share(share, owned.pass_index, owned.segment)
        return Settled(request.request, request.phase)

    def _settle_feedback(self, duty: _Duty) -> None:
        core = self._core
        core.report.begin("settle", len(core.plan.segments))
        for segment in core.plan.segments[core.state.position :]:
            is_former = duty.weight > 0 and segment.index not in duty.segments
            is_former = is_former and self._has_owner_feedback and core.buffers.has_owner_feedback(segment)
            self._settle_segment(segment, duty.weight if is_former else 0.0)
            core.report.step(segment.index)

    def _forget(self) -> None:
        """FEEDBACK <- 0."""
        core = self._core
        core.report.begin("forget", len(core.plan.segments))
        for segment in core.plan.segments[core.state.position :]:
            core.feedback_of(segment).zero_()
            core.journal.write(position=core.state.position + 1)
            core.report.step(segment.index)

    def _settle_segment(self, segment: Segment, takes_over: float) -> None:
        """`takes_over` > 0: this site, with that weight in the mean, owns the segment no more; what it still owed the
        mean as owner goes into its own feedback, so that the mean takes it once in all."""
        core = self._core
        transform, mode = core.plan.transform, core.plan.feedback.mode
        last = core.plan.num_passes - 1
        results = core.buffers.results(last, segment.index)

        def change() -> dict[str, object]:
            e = core.feedback_of(segment)
            payload = core.buffers.outbox(last, segment.index)
            own = delta = None
            if mode == "paper":
                own, delta = core.scratch_of(segment), torch.empty(segment.numel)
                transform.expand(segment, payload, results, own)
                transform.expand(segment, core.buffers.result(last, segment.index), results, delta)
            if mode != "none":
                transform.subtract_expanded_(segment, payload, results, e)
            core.plan.feedback.include_(e, own, delta)
            if takes_over:
                take_over_(e, core.owner_feedback_of(segment), takes_over)
                core.buffers.release_owner_feedback(segment)
            return {}

        core.transact(Saved.BOTH_FEEDBACKS if takes_over else Saved.FEEDBACK, segment, change)

    def _settle_owned(self, owned: Sequence[OwnedSegment]) -> None:
        core = self._core
        first = core.state.position - len(core.plan.segments)
        core.report.begin("settle owned", len(owned))
        for number, item in enumerate(owned):
            if number < first:
                continue
            # The residual follows from the last pass; earlier ones only shaped what it stands for.
            if self._has_owner_feedback and item.pass_index == core.plan.num_passes - 1:
                self._settle_owned_segment(item)
            else:
                core.journal.write(position=core.state.position + 1)
            core.report.step(number)

    def _settle_owned_segment(self, owned: OwnedSegment) -> None:
        core = self._core
        segment = core.plan.segments[owned.segment]
        payloads, weights = self._shares(owned.shares, owned.pass_index, segment)

        def change() -> dict[str, object]:
            residual = core.owner_feedback_of(segment)
            result = core.buffers.result(owned.pass_index, segment.index)
            at = self._at(owned.pass_index, segment)
            try:
                settle_residual_pass_(at, payloads, weights, residual, result)
            except WireError:
                # INBOX or RESULT no longer hold that round (taken over from peers): what we owed the mean is lost.
                residual.zero_()
            return {}

        core.transact(Saved.OWNER_FEEDBACK, segment, change)
        if not bool(core.owner_feedback_of(segment).any().item()):
            core.buffers.release_owner_feedback(segment)

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
            pass_index < self._core.plan.num_passes and segment < len(self._core.plan.segments),
            f"there is no pass {pass_index} segment {segment} in this run's exchange",
        )

    def _shares(
        self, shares: Sequence[Share], pass_index: int, segment: Segment
    ) -> tuple[list[memoryview], list[float]]:
        for share in shares:
            self._core.require(share.slot < self._core.plan.num_inbox_slots, f"INBOX has no slot {share.slot}")
        payloads = [self._core.buffers.share(share, pass_index, segment.index) for share in shares]
        plan = self._core.plan
        part = participation(len(shares), max(share.missing for share in shares))
        factors = [part * age_factor(share.age, plan.age_decay, plan.age_expected) for share in shares]
        return payloads, mean_weights([share.tokens for share in shares], factors)


@dataclass(frozen=True, slots=True)
class _Duty:
    """What this site reduced in the committed attempt, and its own weight in the mean (0: it reduced nothing)."""

    segments: frozenset[int]
    weight: float

    @classmethod
    def of(cls, owned: Sequence[OwnedSegment], last_pass: int) -> _Duty:
        segments = frozenset(item.segment for item in owned if item.pass_index == last_pass)
        if not segments:
            return cls(segments, 0.0)
        shares = owned[0].shares
        own = sum(share.tokens for share in shares if share.slot < 0)
        return cls(segments, fp32(own / sum(share.tokens for share in shares)))


def _square(values: Tensor) -> float:
    """Sum of squares in float64, in chunks of fixed size so that a resumed sum has the same bits."""
    total = 0.0
    for start, stop in chunks(values.numel()):
        piece = values[start:stop].double()
        total += float(torch.dot(piece, piece).item())
    return total
