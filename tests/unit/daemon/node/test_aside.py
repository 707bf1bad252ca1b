"""How long a node that failed is left alone, and what is told of it."""

import socket

import pytest

from dilocoxd import __version__
from dilocoxd.answers.nodes import Nodes, node_wait, nodes_in_words
from dilocoxd.daemon.head import aside
from dilocoxd.daemon.head.aside import ASIDE_MAX, KEPT_S, PAUSE_MOST_S, TOLD_S, SetAside
from dilocoxd.daemon.head.clocks import CLOCKS_MAX, Clocks
from dilocoxd.daemon.head.waiting import WaitingNode
from dilocoxd.wire.local.node import NodeHello

WHY = "its disk is full: No space left on device at /var/n; free space there"


def node(start: str = "first", host: str = "10.0.0.2") -> WaitingNode:
    return WaitingNode(socket.socket(), b"", NodeHello(__version__, "", "", "n1", process=start), host)


def test_pauses_grow_and_another_start_of_the_node_begins_anew() -> None:
    found, now, pauses = SetAside(), 100.0, []
    for _ in range(6):
        found.note(node(), WHY, now)
        pause = next(each for each in range(1000) if not found.why(node(), now + each))
        pauses.append(pause)
        now += pause
    assert pauses == [10, 20, 40, 80, 120, 120] and pauses[-1] == PAUSE_MOST_S
    found.note(node(), WHY, now)
    assert found.why(node(), now) == WHY
    assert not found.why(node("second"), now), "it was started again"
    later = now + PAUSE_MOST_S + KEPT_S
    found.note(node(), WHY, later)
    assert found.why(node(), later + 9) and not found.why(node(), later + 10), "it had been well for long"


def test_it_is_told_while_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside.time, "time", lambda: 5000.0)
    found = SetAside()
    found.note(node(), WHY, 100.0)
    (row,) = found.told(104.0)
    assert (row.node, row.why, row.until) == ("n1 (10.0.0.2)", WHY, 5006.0)
    assert found.told(110.0 + TOLD_S - 1) and not found.told(110.0 + TOLD_S)
    nodes = Nodes(parts=(), stages=(), free_places=0, refused=0, refused_from="", aside=(row,))
    assert f"the node n1 (10.0.0.2) is left alone for a while: {WHY}" in nodes_in_words(nodes)
    assert not node_wait(nodes), "nothing is missed: another one has taken it"


def test_the_oldest_is_forgotten_of_too_many() -> None:
    found = SetAside()
    for number in range(ASIDE_MAX + 1):
        found.note(node(f"start {number}"), WHY, 100.0)
    assert len(found.told(100.0)) == ASIDE_MAX and not found.why(node("start 0"), 100.0)


def test_clock_that_is_off_is_told_until_the_node_comes_with_a_right_one() -> None:
    clocks, now = Clocks(), 1_000_000.0

    def come(ahead_s: float, host: str = "10.0.0.2") -> None:
        hello = NodeHello(__version__, "", "", "n1", home="a folder", clock_ms=round(1000 * (now + ahead_s)))
        clocks.note(WaitingNode(socket.socket(), b"", hello, host), now)

    come(29.0)
    assert not clocks.told
    come(-3600.0)
    (row,) = clocks.told
    nodes = Nodes(parts=(), stages=(), free_places=0, refused=0, refused_from="", clocks=(row,))
    words = "the clock of the node n1 (10.0.0.2) was 3,600 s behind this machine's when it came: let NTP set both"
    assert words in nodes_in_words(nodes)
    come(45.0, "10.0.0.3")
    assert [each.ahead_s for each in clocks.told] == [-3600.0, 45.0]
    come(0.0)
    assert [each.node for each in clocks.told] == ["n1 (10.0.0.3)"]
    for number in range(CLOCKS_MAX + 5):
        come(99.0, f"host-{number}")
    assert len(clocks.told) == CLOCKS_MAX
