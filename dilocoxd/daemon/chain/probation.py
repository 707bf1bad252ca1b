"""Who is on probation in an open run, in the words of the API."""

from collections.abc import Sequence

from dilocoxd.answers.peers import Peer, Probation
from dilocoxd.answers.words import plural
from dilocoxd.ids import PeerId
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.round.grouping import probation_room


def probation_of(chain: ChainView, peer: PeerId) -> Probation | None:
    """What the chain at our height says of this peer; None where it counts in full (M11)."""
    if not chain.is_on_probation(peer):
        return None
    return Probation(rounds_done=chain.served.get(peer, 0), rounds=chain.probation_rounds)


def place_wait(own: Probation | None, peers: Sequence[Peer]) -> str:
    """Why rounds may go on without this site, which is on probation; empty where there is a place for it (M11)."""
    if own is None:
        return ""
    ready = [peer for peer in peers if peer.is_live and peer.state == "training"]
    num_fresh = 1 + sum(peer.probation is not None for peer in ready)
    room = probation_room(1 + len(ready) - num_fresh)
    if num_fresh <= room:
        return ""
    return f"{plural(num_fresh, 'such site')} for {plural(room, 'place')} in a round, who took part most often first"
