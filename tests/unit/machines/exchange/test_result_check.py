"""Results that do not decode are found before the vote, and their owner is named."""

from typing import Any

import pytest

from dilocoxd.daemon.round.signing import vote_keys
from dilocoxd.ids import Digest, Monotonic, RoundIndex
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.exchange.facts import PassPrepared, ReduceFailed
from dilocoxd.machines.exchange.orders import OrderPass
from dilocoxd.machines.limits import Ourselves, RoundLimits
from dilocoxd.machines.round import inputs as e, outputs as c
from dilocoxd.machines.round.machine import RoundMachine
from dilocoxd.swarm.discovery.identity import Identity
from dilocoxd.wire.messages import Vote
from tests.conformance.test_round_vectors import GENESIS, LOADED, RUN_ID, SHAPE, event_of, identities

__all__ = ["identities"]
TRANSCRIPT = next(
    row for row in LOADED["transcripts"] if row["name"] == "the coordinator proposes, exchanges, votes and commits"
)


def until_check(identity: Identity) -> tuple[RoundMachine, OrderPass, float]:
    """The coordinator of two, in the moment in which it holds all results."""
    site = Ourselves(identity.peer_id, RUN_ID, GENESIS, vote_keys(identity, GENESIS))
    state = Digest(bytes.fromhex(LOADED["state_digest"]))
    chain = ChainView(RUN_ID, RoundIndex(0), GENESIS, state, inner_steps=LOADED["inner_steps"])
    machine = RoundMachine(site, SHAPE, RoundLimits(**LOADED["caps"]), chain)
    for number, step in enumerate(TRANSCRIPT["steps"]):
        commands = machine.handle(event_of(step["event"]), now=Monotonic(number / 100))
        assert not votes(commands), "voted for results that nobody has checked"
        for command in commands:
            if isinstance(command, OrderPass):
                return machine, command, number / 100
    raise AssertionError("the results were never checked")


def votes(commands: list[c.Command]) -> list[Any]:
    sent = [command.message for command in commands if isinstance(command, c.Send | c.Broadcast)]
    promises = [command for command in commands if isinstance(command, c.PersistPromise)]
    return [m for m in sent if isinstance(m, Vote)] + [p for p in promises if p.promise.entry is not None]


def answer(check: OrderPass, segment: int | None) -> e.Event:
    where = (check.round, check.attempt, check.pass_index)
    return ReduceFailed(*where, None, None, "a scale is NaN", segment)


def test_sound_results_are_voted_for(identities: dict[str, Identity]) -> None:
    machine, check, now = until_check(identities[TRANSCRIPT["subject"]])
    assert check.pass_index == SHAPE.num_passes
    sound = PassPrepared(check.round, check.attempt, check.pass_index, ())
    assert len(votes(machine.handle(sound, now=Monotonic(now)))) == 2


@pytest.mark.parametrize("whose", ["other", "own", "unknown"])
def test_a_result_that_does_not_decode_fails_the_attempt_and_names_its_owner(
    identities: dict[str, Identity], whose: str
) -> None:
    me = identities[TRANSCRIPT["subject"]].peer_id
    machine, check, now = until_check(identities[TRANSCRIPT["subject"]])
    exchange = machine.height.attempt.exchange
    assert exchange is not None
    mine = exchange.owners.index(me)
    segment = {"other": 1 - mine, "own": mine, "unknown": None}[whose]
    commands = machine.handle(answer(check, segment), now=Monotonic(now))
    machine.check()
    assert not votes(commands)
    failed = next(command for command in commands if isinstance(command, c.AttemptFailed))
    blamed = [command.peer for command in commands if isinstance(command, c.ReportPeer)]
    assert blamed == ([exchange.owners[1 - mine]] if whose == "other" else [])
    assert ("a scale is NaN" in failed.reason) and (whose != "other" or blamed[0] in failed.reason)
