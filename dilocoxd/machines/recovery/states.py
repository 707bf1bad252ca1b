"""The states of one recovery as a table: what the machine may ask or order in each, and where it is then.

The same table stands in protocol/09-catching-up.md, "States of one recovery"; a test compares the two. What is not in
it is an error of ours.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from dilocoxd.machines.recovery import interface as r

Wanted = type[r.Ask | r.Step | r.Done]
"""Kind of what is asked of a peer, ordered of our own site, or reported: it names the state that follows."""

START: Final = "start"
DONE: Final = "done"

_NEXT_PEER: Final[Mapping[Wanted, str]] = {r.AskEntries: "comparing", r.Done: DONE}
"""The peer's chain is settled: the next one's, or the end when none is left, or only such as were added (R22.7), or our
head has moved."""
_REPLAY: Final[Mapping[Wanted, str]] = {r.AskPayload: "fetching_payload"}
_RESTORE: Final[Mapping[Wanted, str]] = {r.RestorePayload: "restoring"}
_LEAVE: Final[Mapping[Wanted, str]] = {r.LeaveOwn: "leaving"}
_ADOPT: Final[Mapping[Wanted, str]] = {r.AdoptSnapshot: "adopting"}
_SEARCH: Final[Mapping[Wanted, str]] = {r.AskSnapshots: "choosing"}
_TURN_BACK: Final[Mapping[Wanted, str]] = {r.TurnBack: "turning_back"}

MOVES: Final[Mapping[str, Mapping[Wanted, str]]] = MappingProxyType(
    {
        START: {r.Rebuild: "rebuilding", r.ReadOwn: "taking_back", **_NEXT_PEER},
        "taking_back": {**_LEAVE, **_NEXT_PEER},
        "comparing": {r.ReadOwn: "weighing", **_NEXT_PEER},
        "weighing": {r.CheckBranch: "weighing", **_SEARCH, **_LEAVE, **_REPLAY, **_NEXT_PEER},
        "choosing": {
            **_SEARCH,
            r.AskOffer: "choosing",
            r.OpenDownload: "fetching_chunks",
            **_LEAVE,
            **_REPLAY,
            **_TURN_BACK,
            **_NEXT_PEER,
        },
        "fetching_chunks": {
            r.AskChunk: "fetching_chunks",
            r.FinishDownload: "fetching_chunks",
            r.OpenDownload: "fetching_chunks",
            r.AskOffer: "choosing",
            **_SEARCH,
            **_LEAVE,
            **_REPLAY,
            **_ADOPT,
            **_TURN_BACK,
            **_NEXT_PEER,
        },
        "restoring": {**_REPLAY, **_LEAVE},
        "leaving": {r.Rebuild: "rebuilding", **_ADOPT},
        "rebuilding": {**_SEARCH, **_ADOPT, **_REPLAY, **_TURN_BACK, **_NEXT_PEER},
        "adopting": {**_REPLAY, **_TURN_BACK, **_NEXT_PEER},
        "fetching_payload": {**_REPLAY, **_RESTORE, r.TakeEntry: "applying", **_SEARCH, **_TURN_BACK, **_NEXT_PEER},
        "applying": {**_REPLAY, **_TURN_BACK, **_NEXT_PEER},
        "turning_back": {**_NEXT_PEER},
        DONE: {},
    }
)
"""(state, what is asked or ordered next) -> state."""


def after(state: str, wanted: r.Ask | r.Step | r.Done) -> str:
    """The state that follows. AssertionError for what the table does not allow."""
    following = MOVES[state].get(type(wanted))
    assert following is not None, f"{type(wanted).__name__} in state {state}"
    return following
