"""What `dilocoxd status` says of sites that voted twice in one attempt (R27)."""

from dataclasses import replace

from dilocoxd.answers.status import VotedTwice
from dilocoxd.cli.screens.status import voted_twice
from dilocoxd.daemon.observe.status import voted_twice_of
from dilocoxd.ids import RoundIndex
from tests.unit.machines.round_world import B, C, chain_at


def test_sites_that_the_chain_leaves_out_are_named_with_the_last_round() -> None:
    chain = replace(chain_at(), barred={C: RoundIndex(1070), B: RoundIndex(67)})
    found = voted_twice_of(chain, {B: "lab", C: "farm"}.__getitem__)
    assert found == (
        VotedTwice(peer_id=B, name="lab", until_round=67),
        VotedTwice(peer_id=C, name="farm", until_round=1070),
    )
    assert voted_twice(found) == "lab, which voted twice, to round 67, farm, which voted twice, to round 1,070"


def test_nothing_is_said_where_nobody_voted_twice() -> None:
    assert voted_twice_of(chain_at(), str) == () and voted_twice(()) == ""
