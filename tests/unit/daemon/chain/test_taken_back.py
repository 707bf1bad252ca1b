"""What is told of entries that leave the chain because one was taken back: evidence may name any of them."""

from dilocoxd.daemon.chain.owed_work import taken_back
from dilocoxd.wire.entry import entry_hash
from tests.unit.daemon.chain.chain_maker import chain


def test_every_entry_that_leaves_is_named_once() -> None:
    own = [signed.entry for signed in chain(6)][1:]
    digests = [entry_hash(entry) for entry in own]
    names = [digest.hex()[:16] for digest in digests]
    found = taken_back(own, frozenset({digests[0], digests[3]}))
    assert [(event.round, event.entry, event.followers) for event in found] == [
        (1, names[0], tuple(names[1:3])),
        (4, names[3], (names[4],)),
    ]
    assert found[0].sites == tuple(named.peer for named in own[0].contributions)


def test_what_stands_below_did_not_leave_because_of_it() -> None:
    own = [signed.entry for signed in chain(3)]
    (event,) = taken_back(own, frozenset({entry_hash(own[2])}))
    assert (event.round, event.followers) == (2, ())
    assert taken_back(own, frozenset()) == [], "a fork is told by fork.resolved"
