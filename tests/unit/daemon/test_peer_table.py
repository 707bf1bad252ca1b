"""Who counts as live: news keeps a peer alive, silence and leaving end that, and our own stalls blame nobody."""

from dataclasses import replace

from dilocoxd.daemon.peer_table import LIVE_S, UNREACHABLE_LIVE_S, PeerTable
from dilocoxd.ids import Monotonic, PeerId, RunId
from dilocoxd.wire.records import EMPTY_DIGEST, PeerRecord

ME, OTHER = PeerId("QmMe"), PeerId("QmOther")


def record(**changes: object) -> PeerRecord:
    base = PeerRecord(
        peer=OTHER,
        run_id=RunId("run-0123456789abcdef"),
        protocol_major=1,
        protocol_minor=0,
        incarnation=1,
        sequence=1,
        unix_ms=0,
        ttl_ms=30_000,
        state="training",
        addresses=(),
        chain_head=EMPTY_DIGEST,
        chain_height=3,
        chain_weight=0,
        state_digest=EMPTY_DIGEST,
        contributed_round=-1,
        milli_steps_per_s=2000,
        tokens_per_s=0,
        upload_bytes_per_s=0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def at(seconds: float) -> Monotonic:
    return Monotonic(seconds)


def test_news_makes_a_peer_live_and_silence_ends_it() -> None:
    table = PeerTable(ME)
    assert table.seen(record(), now=at(0), is_news=True)
    assert table.live(now=at(LIVE_S - 0.1)) == [OTHER]
    assert table.live(now=at(LIVE_S + 0.1)) == []
    assert table.known() == [OTHER]


def test_record_from_disk_says_nothing_about_the_present() -> None:
    table = PeerTable(ME)
    assert not table.seen(record(), now=at(0), is_news=False)
    assert table.known() == [OTHER]
    assert table.live(now=at(0)) == []


def test_old_news_does_not_end_the_life_that_fresh_news_showed() -> None:
    table = PeerTable(ME)
    table.seen(record(), now=at(0), is_news=True)
    table.seen(record(sequence=2), now=at(5), is_news=False)
    assert table.live(now=at(LIVE_S - 0.1)) == [OTHER]
    assert table.live(now=at(LIVE_S + 0.1)) == []


def test_unreachable_peer_is_given_up_sooner() -> None:
    table = PeerTable(ME)
    table.seen(record(), now=at(0), is_news=True)
    table.reached(OTHER, False)
    assert table.live(now=at(UNREACHABLE_LIVE_S + 0.1)) == []


def test_leaving_peer_is_not_waited_for() -> None:
    table = PeerTable(ME)
    table.seen(record(), now=at(0), is_news=True)
    table.seen(record(sequence=2, state="left"), now=at(1), is_news=True)
    assert table.live(now=at(1)) == []


def test_our_own_stall_blames_nobody() -> None:
    table = PeerTable(ME)
    table.tick(now=at(0))
    table.seen(record(), now=at(0), is_news=True)
    table.tick(now=at(40))
    assert table.live(now=at(40)) == [OTHER]
    table.tick(now=at(41))
    assert table.live(now=at(41 + LIVE_S)) == []


def test_view_tells_the_round_machine_height_and_training() -> None:
    table = PeerTable(ME)
    table.seen(record(), now=at(0), is_news=True)
    (view,) = table.views(now=at(0))
    assert (view.peer, view.is_live, view.is_training, view.height) == (OTHER, True, True, 3)
    table.seen(record(sequence=2, state="catching_up"), now=at(1), is_news=True)
    assert not table.views(now=at(1))[0].is_training


def test_own_record_is_not_a_peer() -> None:
    table = PeerTable(ME)
    assert not table.seen(record(peer=ME), now=at(0), is_news=True)
    assert table.known() == []
