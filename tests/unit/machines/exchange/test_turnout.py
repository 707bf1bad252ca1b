"""Who reduces is told by how many contributors a round is short of the fullest recent one (rule X9)."""

import pytest

from dilocoxd.daemon.round.signing import vote_keys
from dilocoxd.ids import Digest, Monotonic, RoundIndex
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.exchange.orders import OrderPass, OrderReduce
from dilocoxd.machines.limits import Ourselves, RoundLimits
from dilocoxd.machines.round import outputs as c
from dilocoxd.machines.round.machine import RoundMachine
from dilocoxd.swarm.discovery.identity import Identity
from tests.conformance.test_round_vectors import GENESIS, LOADED, RUN_ID, SHAPE, event_of, identities

__all__ = ["identities"]
OF_TWO = next(
    row for row in LOADED["transcripts"] if row["name"] == "the coordinator proposes, exchanges, votes and commits"
)


@pytest.mark.parametrize(("turnout", "missing"), [((), 0), ((1, 2), 0), ((5, 1), 3), ((1, 1, 3), 1)])
def test_owner_is_told_how_many_are_missing(
    identities: dict[str, Identity], turnout: tuple[int, ...], missing: int
) -> None:
    identity = identities[OF_TWO["subject"]]
    site = Ourselves(identity.peer_id, RUN_ID, GENESIS, vote_keys(identity, GENESIS))
    state = Digest(bytes.fromhex(LOADED["state_digest"]))
    chain = ChainView(
        RUN_ID,
        RoundIndex(0),
        GENESIS,
        state,
        inner_steps=LOADED["inner_steps"],
        participation_rounds=64,
        turnout=turnout,
    )
    machine = RoundMachine(site, SHAPE, RoundLimits(**LOADED["caps"]), chain)
    commands: list[c.Command] = []
    for number, step in enumerate(OF_TWO["steps"]):
        commands += machine.handle(event_of(step["event"]), now=Monotonic(number / 100))
        if any(isinstance(command, OrderPass) for command in commands):
            break
    orders = [command for command in commands if isinstance(command, OrderReduce)]
    assert orders
    assert {(len(order.shares), share.missing) for order in orders for share in order.shares} == {(2, missing)}
