"""What a recovery waits for, in the operator's words. Pure text: nothing is decided by it."""

from dilocoxd.ids import PeerId
from dilocoxd.machines.recovery import interface as r


def sentence(wanted: r.Ask | r.Step | r.Done | None, reason: str, peer: PeerId | None, fork: int | None) -> str:
    """What `wanted` brings. `reason`: why the recovery was ordered; `peer`: whose chain it is about; `fork`: where that
    parts from ours, while it is taken."""
    match wanted:
        case r.AskEntries():
            return f"the chain of {wanted.peer} ({reason})"
        case r.ReadOwn(number):
            return f"the branch of {peer} to be weighed" if peer is not None else f"entry {number} to be taken back"
        case r.CheckBranch(branch):
            return f"the votes of {len(branch.entries)} entries of {peer} to be checked"
        case r.LeaveOwn(branch, own):
            return f"{len(own)} entries of ours to be left (fork at height {branch.fork})"
        case r.Rebuild():
            return "our state, from our own disk" if fork is None else f"the state at the fork (height {fork})"
        case r.AdoptSnapshot(offer):
            return f"snapshot {offer.round} to be loaded"
        case r.AskPayload(signed=signed) | r.RestorePayload(signed=signed):
            return f"the payload of entry {signed.entry.round}"
        case r.TakeEntry(signed):
            return f"entry {signed.entry.round} to be applied"
        case r.TurnBack():
            return "the part of the better branch that came" if wanted.is_kept else "our own branch again"
        case _:
            return ""
