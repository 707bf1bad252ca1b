"""What our chain says of the samples of our contribution, told to the round machine with events that need it (Q4)."""

from collections.abc import Callable
from dataclasses import replace

from dilocoxd.daemon.chain.reading_plan import ReadingPlan
from dilocoxd.ids import PhaseId
from dilocoxd.machines.round.inputs import Event, PhaseOffered, RecoveryFinished
from dilocoxd.wire.entry import Contribution, Signature


def as_read(
    event: Event,
    reading: ReadingPlan,
    flying: Contribution | None,
    sign_offer: Callable[[Contribution], Signature],
    in_flight: PhaseId | None,
) -> Event:
    """`event`: a contribution that is offered names the base that fits what its phase has read, and one that was in
    flight through a recovery stays only if it does. `flying`: the one that is offered already. `in_flight`: the phase
    of what the site has formed and not settled; what it gave up meanwhile (R29.7) may be in no entry.

    To be called at the moment at which the machine hears of it: a recovery may have come between."""
    match event:
        case PhaseOffered(contribution):
            base = reading.base_of(contribution)
            if base is None or contribution.phase != in_flight:
                return replace(event, is_misread=True)
            if base != contribution.base_round:
                older = replace(contribution, base_round=base)
                return replace(event, contribution=older, offer=sign_offer(older))
        case RecoveryFinished() if flying is not None and reading.base_of(flying) != flying.base_round:
            return replace(event, misread=flying.phase)
        case _:
            pass
    return event
