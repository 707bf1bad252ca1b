"""X13.5: with `verify = before_vote` our vote waits for our own audit, and a false result is not voted for."""

from dataclasses import replace

import pytest

from dilocoxd.ids import Attempt, PeerId, RoundIndex
from dilocoxd.machines.exchange.exchange import Exchange
from dilocoxd.machines.round.exchanging import look, on_audited
from dilocoxd.machines.round.height import Height
from dilocoxd.machines.round.inputs import Audited
from dilocoxd.machines.round.outcomes import EXCHANGING, GATHERING, GiveUp, VoteOn, Waiting
from dilocoxd.machines.round.outputs import OrderAudit, ReportPeer
from tests.unit.machines.round_world import HASHES, ME, SHAPE, START, B, height_of, proposal


def with_results(*group: PeerId, observers: tuple[PeerId, ...] = (), is_audited: bool = True) -> Height:
    """All results are here and decode."""
    height = height_of(*(peer for peer in (*group, *observers) if peer != ME))
    shape = replace(SHAPE, is_audited=is_audited)
    exchange = Exchange(ME, shape, proposal(*group, observers=observers), height.own.inbox)
    height.attempt.begin(ME, exchange, START)
    exchange.results = {(0, segment): digest for segment, digest in enumerate(HASHES)}
    exchange.is_check_ordered = exchange.is_checked = True
    return height


def audited(height: Height, *culprits: PeerId, attempt: int = 0) -> Audited:
    return Audited(height.round, Attempt(attempt), culprits, "another sum" if culprits else "")


def test_audit_is_ordered_once_and_then_we_vote() -> None:
    height = with_results(ME, B)
    found = look(height, START)
    assert isinstance(found, Waiting)
    (order,) = found.orders
    assert isinstance(order, OrderAudit)
    assert order.entry.result_hashes == HASHES
    exchange = height.attempt.exchange
    assert exchange is not None and order.owners == exchange.owners
    again = look(height, START)
    assert isinstance(again, Waiting) and not again.orders
    assert on_audited(height, audited(height), EXCHANGING, START) is None
    vote = look(height, START)
    assert isinstance(vote, VoteOn)
    assert vote.voted_on.entry == order.entry and vote.voted_on.owners == order.owners


def test_owner_of_a_false_result_is_blamed_and_nobody_votes() -> None:
    height = with_results(ME, B)
    look(height, START)
    found = on_audited(height, audited(height, B), EXCHANGING, START)
    assert isinstance(found, GiveUp)
    assert found.blames == (B,)
    assert found.orders == (ReportPeer(B, "false_result", "another sum"),)
    assert "another sum" in found.reason


@pytest.mark.parametrize("state", [GATHERING, "committing"])
def test_audit_that_comes_too_late_changes_nothing(state: str) -> None:
    height = with_results(ME, B)
    assert on_audited(height, audited(height, B), EXCHANGING, START) is None, "nobody asked"
    look(height, START)
    assert on_audited(height, audited(height, B), state, START) is None
    assert on_audited(height, audited(height, B, attempt=1), EXCHANGING, START) is None
    other = replace(audited(height, B), round=RoundIndex(height.round + 1))
    assert on_audited(height, other, EXCHANGING, START) is None
    assert on_audited(height, audited(height), EXCHANGING, START) is None
    assert on_audited(height, audited(height, B), EXCHANGING, START) is None, "it is answered already"


def test_observers_and_runs_without_audits_do_not_wait() -> None:
    assert isinstance(look(with_results(ME, B, is_audited=False), START), VoteOn)
    assert isinstance(look(with_results(B, observers=(ME,)), START), VoteOn)
