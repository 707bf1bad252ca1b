"""After each vote of its own sends another one, signed as well, for an entry that does not exist."""

import hashlib
from typing import Any

from dilocoxd.daemon.round.driver import RoundDriver
from dilocoxd.machines.round.outputs import Send
from dilocoxd.wire.entry import VoteFor
from dilocoxd.wire.messages import Vote


def apply() -> None:
    """Every vote, to everybody who gets it."""
    honest = RoundDriver._do

    async def do(self: RoundDriver, command: Any, transfers: Any) -> None:
        await honest(self, command, transfers)
        if not isinstance(command, Send) or not isinstance(command.message, Vote):
            return
        vote = command.message
        other = hashlib.sha256(vote.entry_hash).digest()
        keys = self._machine.height.terms.site.keys
        signed = keys.sign(VoteFor(vote.round, vote.attempt, vote.parent, other))
        self._parts.post.send(command.peer, Vote(vote.round, vote.parent, other, signed))

    RoundDriver._do = do  # type: ignore[method-assign]
