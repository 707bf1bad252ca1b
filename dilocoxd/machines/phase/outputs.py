"""Commands of the phase machine to its driver (machine.py; docs/internals.md section 2)."""

from dataclasses import dataclass

from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.machines.phase.settings import SiteRecord
from dilocoxd.machines.phase.soundness import Spoiled
from dilocoxd.machines.phase.vocabulary import OuterAnswer, OuterRequest, TrainerCommand
from dilocoxd.wire.local.outer_worker import ContributionFormed


@dataclass(frozen=True, slots=True)
class RunOuter:
    """Send this request; `number` = its request number. The same number may be sent again after OuterStarted."""

    number: int
    request: OuterRequest


@dataclass(frozen=True, slots=True)
class TellTrainer:
    message: TrainerCommand


@dataclass(frozen=True, slots=True)
class PersistRecord:
    """Durable (fsync) before the next command is carried out."""

    record: SiteRecord
    is_derived: bool = False
    """What is new of it says the chain as well (repayment.begin): it need not be written."""


@dataclass(frozen=True, slots=True)
class OfferContribution:
    """A contribution is formed and lies in OUTBOX until it is settled; it is for the round = current height."""

    phase: PhaseId
    base_round: RoundIndex
    inner_steps: int
    tokens: int
    lowrank_r: int
    formed: ContributionFormed


@dataclass(frozen=True, slots=True)
class DropContribution:
    """This phase offers nothing."""

    phase: PhaseId
    reason: str


@dataclass(frozen=True, slots=True)
class ForgetWork:
    """What is kept of this contribution is not owed, whatever becomes of the chain; durable before what follows."""

    phase: PhaseId


@dataclass(frozen=True, slots=True)
class TellSpoiled:
    """Tell the operator: from this state nothing can be trained, and the trainers wait for another one."""

    spoiled: Spoiled


@dataclass(frozen=True, slots=True)
class TellTrains:
    """Tell the operator: after one that was spoiled, the shared state `round` can be trained from."""

    round: RoundIndex


@dataclass(frozen=True, slots=True)
class FinishOrder:
    """What was ordered with this number is done."""

    order: int
    answer: OuterAnswer | None


@dataclass(frozen=True, slots=True)
class RefuseOrder:
    order: int
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class RestartTrainer:
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class FailSite:
    """Nothing that a restart could mend."""

    reason: str


@dataclass(frozen=True, slots=True)
class FinishLeaving:
    """Nothing is left to be done or saved; the workers may be stopped."""


PhaseCommand = (
    RunOuter
    | TellTrainer
    | PersistRecord
    | OfferContribution
    | DropContribution
    | ForgetWork
    | TellSpoiled
    | TellTrains
    | FinishOrder
    | RefuseOrder
    | RestartTrainer
    | FailSite
    | FinishLeaving
)
