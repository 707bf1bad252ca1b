"""Single-process engine: M sites over tensors, with the real transforms, codecs, reduce, feedback and outer step.

Used by tests of the invariants and by the convergence study. It is what the daemons compute, without processes: one
segment after the other, contributions in sorted order of the site names, one owner residual per segment, or one per
segment and owner where a log says who owned what. Phases and delays are in phases.py. Source: ALGORITHMS 4,
docs/internals.md sections 2 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dilocoxd.compress.codec import MAGNITUDE_MAX, NotEncodableError, chunks
from dilocoxd.compress.transform import Transform
from dilocoxd.outer.clipping import ClipRecord, ClipRule
from dilocoxd.outer.feedback import ErrorFeedback
from dilocoxd.outer.optimizers import OuterOptimizer, zero_slots
from dilocoxd.outer.passes import (
    SegmentPass,
    counted,
    encode_pass,
    reduce_pass,
    settle_residual_pass_,
    subtract_counted_,
    take_over_,
    weigh_pass,
)
from dilocoxd.outer.rounding import capped_tokens, fp32, mean_weights, participation
from dilocoxd.wire.clip_record import NORMS_KEPT
from dilocoxd.wire.layout import Layout, Segment


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the manifest fixes about the outer loop."""

    transform: Transform
    optimizer: OuterOptimizer
    feedback: ErrorFeedback = field(default_factory=ErrorFeedback)
    has_owner_feedback: bool = True
    keeps_progress: bool = False
    """What a contribution did not bring in stays in the sites' parameters (streaming), not in their feedback."""
    participation_rounds: int = 0
    """A round with fewer contributors than the fullest of so many before it makes a part of a step; 0: never."""
    clip_kappa: float = 0.0
    """Norms of contributions are clipped at so many times their median; 0: not at all."""
    is_centered: bool = False
    """Distances from the last Delta are clipped instead of norms."""
    drops_contrary: bool = False
    """Shares that point against the others are not counted."""


@dataclass(slots=True)
class Offer:
    """Contributions of one round that are formed but not yet settled; d (or r) waits in the sites' feedback."""

    segments: tuple[Segment, ...]
    tokens: dict[str, int]
    factors: dict[str, float]
    """By which late contributions are scaled (outer/rounding.py: age_factor); 1 for who is on time."""
    first_payloads: dict[str, dict[int, bytearray]]


@dataclass(frozen=True, slots=True)
class _Group:
    """Who takes part in a round that commits; `owners` by segment, empty: the engine itself reduces everything."""

    sites: Sequence[str]
    tokens: Mapping[str, int]
    weights: Sequence[float]
    owners: Sequence[str]

    def owner(self, segment: Segment) -> str:
        return self.owners[segment.index] if self.owners else ""

    def own_weight(self, site: str) -> float:
        capped = dict(zip(self.sites, capped_tokens([self.tokens[each] for each in self.sites]), strict=True))
        return fp32(capped[site] / sum(capped.values()))


@dataclass(slots=True)
class Engine:
    """Shared state (anchor, slots), per-site feedback and owner residuals of one run."""

    recipe: Recipe
    anchor: Tensor
    slots: list[Tensor]
    feedback: dict[str, Tensor]
    owner_residual: Tensor
    """Where no owners are named."""
    delta: Tensor
    """The committed mean of the last round, decoded; zero where nothing was committed yet."""
    outer_steps: list[int]
    """Committed entries per segment."""
    last_results: dict[int, bytes] = field(default_factory=dict)
    """By segment: committed result of the last pass, from which a transform with memory starts the next round."""
    payload_bytes_sent: int = 0
    """Bytes of all contributions so far, all sites; results take as much again per result and receiver."""
    last_bytes_per_site: int = 0
    residuals_of: dict[str, Tensor] = field(default_factory=dict)
    """By owner, where owners are named."""
    records: dict[int, list[ClipRecord]] = field(default_factory=dict)
    """By segment: what the results of all rounds said of their shares."""
    turnout: list[int] = field(default_factory=list)
    """Number of contributors of every committed round."""
    after_commit: Callable[[], None] | None = None
    """Called when a round has been applied, before anything else is offered: schedules change low rank here."""

    @classmethod
    def start(cls, recipe: Recipe, anchor: Tensor, sites: Sequence[str]) -> Engine:
        """State at genesis, with its own copy of `anchor`, float32[layout.numel]."""
        numel = recipe.transform.layout.numel
        return cls(
            recipe,
            anchor.clone(),
            zero_slots(recipe.optimizer, numel),
            {site: torch.zeros(numel) for site in sorted(sites)},
            torch.zeros(numel),
            torch.zeros(numel),
            [0] * len(recipe.transform.layout.segments),
        )

    def offer(
        self,
        updates: Mapping[str, Tensor],
        tokens: Mapping[str, int] | None = None,
        segments: Sequence[int] = (),
        factors: Mapping[str, float] | None = None,
    ) -> Offer:
        """Form contributions from pseudo-gradients u = float32[numel]; `segments` = indices, () for all.

        `tokens` weigh (default: all alike), `factors` scale down what is late.

        Raises NotEncodableError, naming the parameter, before anything has changed.
        """
        layout = self.recipe.transform.layout
        for update in updates.values():
            check_offerable(layout, update)
        chosen = tuple(layout.segments[index] for index in segments) if segments else layout.segments
        sites = sorted(updates)
        weights = {site: (tokens or {}).get(site, 1) for site in sites}
        offer = Offer(chosen, weights, {site: (factors or {}).get(site, 1.0) for site in sites}, {})
        for site in offer.tokens:
            payloads = {}
            for segment in chosen:
                e = self.feedback[site][segment.start : segment.stop]
                self.recipe.feedback.form_(e, updates[site][segment.start : segment.stop])
                payloads[segment.index] = self._encode(SegmentPass(self.recipe.transform, 0, segment), e)
            offer.first_payloads[site] = payloads
        return offer

    def commit(self, offer: Offer, excluded: frozenset[str] = frozenset(), owners: Sequence[str] = ()) -> None:
        """Exchange and apply one round; the contributions of `excluded` sites stay in their feedback.

        If all are excluded the round is void: nothing but their feedback has changed. `owners`: site that reduces each
        segment of the layout; what it still owed of segments that it reduces no more goes into its own feedback.
        """
        included = [site for site in offer.tokens if site not in excluded]
        self.last_bytes_per_site = 0
        for site in excluded.intersection(offer.tokens) if self.recipe.keeps_progress else ():
            self.feedback[site].zero_()
        if not included:
            return
        part = participation(len(included), self.missing(len(included)))
        self.turnout.append(len(included))
        weights = mean_weights([offer.tokens[s] for s in included], [part * offer.factors[s] for s in included])
        group = _Group(included, offer.tokens, weights, owners)
        for segment in offer.segments:
            self._exchange(segment, group, [offer.first_payloads[site][segment.index] for site in included])
        self.payload_bytes_sent += self.last_bytes_per_site * len(included)
        if self.after_commit is not None:
            self.after_commit()

    def missing(self, present: int) -> int:
        """By how many a next round with `present` contributors is short of the fullest recent one."""
        rounds = self.recipe.participation_rounds
        return max(0, max(self.turnout[-rounds:], default=0) - present) if rounds else 0

    def _residual(self, owner: str) -> Tensor:
        if not owner:
            return self.owner_residual
        return self.residuals_of.setdefault(owner, torch.zeros_like(self.owner_residual))

    def _exchange(self, segment: Segment, group: _Group, shares: list[bytearray]) -> None:
        recipe, transform, sites = self.recipe, self.recipe.transform, group.sites
        here = slice(segment.start, segment.stop)
        center = self.delta[here].clone() if recipe.is_centered else None
        rule = ClipRule(recipe.clip_kappa, center, recipe.drops_contrary)
        residual = self._residual(group.owner(segment))[here] if recipe.has_owner_feedback else None
        results: list[bytearray] = []
        for index in range(transform.num_passes):
            at = SegmentPass(transform, index, segment, tuple(results))
            if index:
                shares = [self._encode(at, self.feedback[site][here]) for site in sites]
            self.last_bytes_per_site += at.payload_bytes
            result = bytearray(at.payload_bytes)
            recent = [record.norm for record in self.records.get(segment.index, [])[-NORMS_KEPT:]]
            weighing, record = weigh_pass(at, shares, group.weights, rule, recent)
            reduce_pass(at, shares, weighing, residual, result)
            results.append(result)
        self.records.setdefault(segment.index, []).append(record)
        last = SegmentPass(transform, transform.num_passes - 1, segment, tuple(results[:-1]))
        delta = self.delta[here]
        transform.expand(segment, results[-1], last.results, delta)
        if residual is not None:
            settle_residual_pass_(last, shares, weighing, residual, results[-1])
        for site, share, factor in zip(sites, shares, record.factors, strict=True):
            self._settle_site(last, site, share, (factor, rule.center))
            if residual is not None and site in group.owners and site != group.owner(segment):
                take_over_(self.feedback[site][here], self._residual(site)[here], group.own_weight(site))
        transform.learn(segment, results)
        self.last_results[segment.index] = bytes(results[-1])
        moved = transform.touched(segment)
        slots = [slot[here][moved] for slot in self.slots]
        steps_before = transform.steps_before(self.outer_steps[segment.index])
        recipe.optimizer.step_(self.anchor[here][moved], slots, delta[moved], steps_before)
        self.outer_steps[segment.index] += 1

    def _settle_site(self, last: SegmentPass, site: str, share: bytearray, clip: tuple[float, Tensor | None]) -> None:
        here = slice(last.segment.start, last.segment.stop)
        e = self.feedback[site][here]
        subtract_counted_(last, share, e, *clip)
        own = counted(last, share, *clip) if self.recipe.feedback.mode == "paper" else None
        self.recipe.feedback.include_(e, own, self.delta[here])

    @staticmethod
    def _encode(at: SegmentPass, d: Tensor) -> bytearray:
        payload = bytearray(at.payload_bytes)
        encode_pass(at, d, payload)
        return payload


def check_offerable(layout: Layout, u: Tensor) -> None:
    """Raise NotEncodableError, naming the parameter, if u = float32[layout.numel] must not be offered."""
    if _is_offerable(u):
        return
    for param in layout.params:
        span = layout.span(param.name)
        if not _is_offerable(u[span.start : span.stop]):
            raise NotEncodableError(f"pseudo-gradient of {param.name} holds NaN, Inf or a magnitude above 2**63")


def _is_offerable(u: Tensor) -> bool:
    """Half of what codecs take, so that adding bounded feedback stays in range."""
    return all(bool((u[a:b].abs().amax() <= MAGNITUDE_MAX / 2).item()) for a, b in chunks(u.numel()))
