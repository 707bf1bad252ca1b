"""What the commands of one event tell of the peer that gave them."""

from collections.abc import Sequence

from dilocoxd.ids import Attempt
from dilocoxd.machines.exchange import orders
from dilocoxd.machines.round import outputs as c
from dilocoxd.wire import messages as m


def works_in(command: c.Command) -> Attempt | None:
    """The attempt in whose exchange only somebody orders, or says, this who takes part in it."""
    match command:
        case orders.SendSegment(_, key):
            return key.attempt
        case orders.OrderReduce() | orders.OrderPass():
            return command.attempt
        case c.Send(_, m.Accept(attempt=attempt)):
            return attempt
        case _:
            return None


def is_unlocked(commands: Sequence[c.Command]) -> bool:
    """It says Ready, and of no lock."""
    said = [one.message for one in commands if isinstance(one, c.Send | c.Broadcast)]
    return any(isinstance(one, m.Ready) and one.lock is None for one in said)
