"""Who is on probation in an open run, in the words of the API."""

from dilocoxd.answers.peers import Probation
from dilocoxd.ids import PeerId
from dilocoxd.machines.chain import ChainView


def probation_of(chain: ChainView, peer: PeerId) -> Probation | None:
    """What the chain at our height says of this peer; None where it counts in full (M11)."""
    if not chain.is_on_probation(peer):
        return None
    return Probation(rounds_done=chain.served.get(peer, 0), rounds=chain.probation_rounds)
