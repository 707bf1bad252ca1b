"""What the watch takes for news, for a claim and for an early word: as the rules say it, no more and no less."""

import dataclasses

import pytest

from dilocoxd.ids import Attempt, PeerId, RoundIndex
from dilocoxd.machines.round.inputs import MessageReceived, PeersChanged, RoundMessage
from dilocoxd.wire.entry import VoteFor
from dilocoxd.wire.messages import Abandon, Ready, Vote
from tests.simulation.peer.signing import keys_of
from tests.simulation.rules.heard import Heard
from tests.simulation.schedules.byzantine import unsigned
from tests.unit.machines.round_world import BITS, HEAD, LIMITS, ME, B, C, ready, view

HERE = RoundIndex(3)


def heard_of(*known: PeerId, dead: tuple[PeerId, ...] = ()) -> Heard:
    """We stand at round 3; membership knows these."""
    heard = Heard(ME, LIMITS, lambda peer: False)
    heard.at_new_place((HERE, HEAD))
    see(heard, *known, dead=dead)
    return heard


def see(heard: Heard, *known: PeerId, dead: tuple[PeerId, ...] = ()) -> None:
    heard.hear(PeersChanged((*map(view, known), *(view(peer, is_live=False) for peer in dead)), is_training=True))


def says(heard: Heard, peer: PeerId, message: RoundMessage) -> bool:
    """Whether that is news."""
    return heard.hear(MessageReceived(peer, message))


def at(round_index: int) -> Ready:
    """On our head, or on what only its peer has there."""
    head = HEAD if round_index == HERE else b"x" * 32
    return Ready(RoundIndex(round_index), Attempt(0), head, BITS, None, None, None, 0)


def vote(peer: PeerId, entry: bytes) -> Vote:
    """For an entry on our head."""
    return Vote(HERE, HEAD, entry, keys_of(peer).sign(VoteFor(HERE, Attempt(0), HEAD, entry)))


def test_ready_of_who_had_left_our_attempt_is_news_though_it_says_the_same() -> None:
    """Seed 982132: on waking a peer proposed at once because of such a Ready, not because of a time-out (R18)."""
    heard, said = heard_of(B), ready(B)
    assert says(heard, B, said) and not says(heard, B, said)
    says(heard, B, Abandon(HERE, heard.attempt, "catching up", ()))
    assert says(heard, B, said), "it is back"
    assert not says(heard, B, said), "it was here"


@pytest.mark.parametrize(("known", "dead"), [((), ()), ((), (B,))], ids=["a stranger", "dead"])
def test_claim_of_who_is_not_live_ends(known: tuple[PeerId, ...], dead: tuple[PeerId, ...]) -> None:
    """Seeds 984664 and 988658: before membership knew a peer, it said it was ahead; it came back with less."""
    heard = heard_of(B)
    says(heard, B, at(4))
    see(heard, B)
    assert heard.word[B].height == 4, "a heartbeat takes nothing back (R19.5)"
    see(heard, *known, dead=dead)
    assert (B in heard.word) is (not dead), "a stranger may be one whose heartbeats were lost"
    heard.now += LIMITS.progress_timeout_s
    see(heard, *known, dead=dead)
    see(heard, B)
    assert B not in heard.word


def test_vote_that_comes_while_we_catch_up_does_not_count() -> None:
    """Seed 1123016: its peer lost its disk afterwards, and voted again in the same attempt (R10.7)."""
    heard = heard_of(B)
    heard.hear(MessageReceived(B, vote(B, b"lost")), is_catching_up=True)
    assert not heard.votes
    says(heard, B, vote(B, b"kept"))
    says(heard, B, vote(B, b"lost"))
    assert list(heard.votes.values()) == [b"kept"], "the first one that counts"


def test_vote_that_its_peer_did_not_sign_does_not_count() -> None:
    """Seed 5302301: a liar sent its vote without a signature too, and that one came first (R26)."""
    heard, genuine = heard_of(B), vote(B, b"kept")
    says(heard, B, dataclasses.replace(genuine, vote=unsigned(genuine.vote)))
    says(heard, C, genuine)
    assert not heard.votes
    says(heard, B, genuine)
    assert list(heard.votes.values()) == [b"kept"]


def test_stranger_that_stands_where_we_stand_is_remembered() -> None:
    """Whoever has our last entry lets us leave (R17), whether membership knew it then or not."""
    heard = heard_of()
    says(heard, B, at(HERE))
    see(heard)
    assert heard.word[B].height == HERE


def test_of_strangers_only_so_many_early_words_are_kept_as_membership_knows_and_one() -> None:
    """Seed 987343: the watch held against a peer a lock of which it had kept nothing (R13)."""
    heard, strangers = heard_of(B), [PeerId(f"x{index}") for index in range(4)]
    for peer in (*strangers, B):
        says(heard, peer, at(4))
    assert heard.early.keys() == {*strangers[:2], B}
    says(heard, C, at(5))
    assert C not in heard.early


@pytest.mark.parametrize(("known", "dead"), [((), ()), ((), (B,))], ids=["a stranger", "dead"])
def test_early_word_of_who_is_not_live_is_forgotten(known: tuple[PeerId, ...], dead: tuple[PeerId, ...]) -> None:
    """Coalition 1400011: it came back without the entry that had made it say so; `buffered` of chapter 06."""
    heard = heard_of(B)
    says(heard, B, at(4))
    see(heard, *known, dead=dead)
    assert (B in heard.early) is (not dead)


def test_who_joins_no_attempt_has_its_time_over_attempts_and_the_whole_of_it_once_it_answers() -> None:
    """Seed 2100152 (R6.2)."""
    heard = heard_of(B, C)

    def stands(at_s: float, attempt: int, *, is_open: bool = True) -> set[PeerId]:
        heard.now = at_s
        if attempt != heard.attempt:
            heard.in_attempt(Attempt(attempt))
            says(heard, C, ready(attempt=attempt))
        heard.note_silent(is_over=False, is_open=is_open)
        return heard.silent

    says(heard, C, ready())
    limit = LIMITS.progress_timeout_s
    assert not stands(0.0, 0) and not stands(limit / 2, 1)
    assert stands(limit, 2) == {B}
    says(heard, B, ready(attempt=2))
    assert not stands(limit, 2) and not stands(1.5 * limit, 3) and not stands(2 * limit, 4)
    assert not stands(2.2 * limit, 4, is_open=False) and not stands(2.6 * limit, 4), "it was not heard meanwhile"
