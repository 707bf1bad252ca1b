"""Serving is charged to who asks: log reads beyond its budget are refused, and cost nobody else anything."""

from pathlib import Path

import pytest

from dilocoxd.daemon.peers import serving
from dilocoxd.daemon.peers.serving import Library
from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId, RunId
from dilocoxd.store.log import EntryLog
from dilocoxd.swarm.streams.budget import Rate

GREEDY, OTHER, NEIGHBOUR = PeerId("greedy"), PeerId("other"), PeerId("neighbour")


async def is_answered(library: Library, peer: PeerId, resource: str = "chain/0") -> bool:
    try:
        (await library.open(peer, resource)).close()
    except WireError as error:
        assert error.code == "busy"
        return False
    return True


async def test_greedy_reader_of_the_log_is_refused_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "BUDGET_WAIT_S", 0.0)
    monkeypatch.setattr(serving, "BUDGET_POLL_S", 0.0)
    monkeypatch.setattr(serving, "LOG_EACH", Rate(0.001, 5.0))
    monkeypatch.setattr(serving, "LOG_NETWORK", Rate(0.001, 7.0))
    log = EntryLog(tmp_path / "log", RunId("run-0123456789abcdef"), bytes(32))  # type: ignore[arg-type]
    library = Library(b"manifest", log, tmp_path)
    library.network = {GREEDY: "n1", NEIGHBOUR: "n1", OTHER: "n2"}.__getitem__
    assert [await is_answered(library, GREEDY) for _ in range(8)] == [True] * 5 + [False] * 3
    assert [await is_answered(library, NEIGHBOUR, "snapshots") for _ in range(4)] == [True] * 2 + [False] * 2
    assert await is_answered(library, OTHER)
    assert await is_answered(library, GREEDY, "manifest"), "what lies in memory costs nothing"
