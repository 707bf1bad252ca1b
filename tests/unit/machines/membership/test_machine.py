"""Who counts as live: news keeps a peer alive, silence and leaving end that, and our own stalls blame nobody."""

from dataclasses import replace

from dilocoxd.ids import Monotonic, PeerId, RunId
from dilocoxd.machines.membership.hosts import HostsHeard
from dilocoxd.machines.membership.machine import (
    ALIVE,
    DEAD,
    LEFT,
    LIVE_S,
    PEERS_MAX,
    SUSPECT,
    SUSPECT_S,
    UNREACHABLE_LIVE_S,
    Membership,
)
from dilocoxd.wire.messages import PROTOCOL_MAJOR
from dilocoxd.wire.records import PEER_STATES, PeerRecord
from tests.reference.state_digest import EMPTY_DIGEST

ME, OTHER = PeerId("QmMe"), PeerId("QmOther")


def record(**changes: object) -> PeerRecord:
    base = PeerRecord(
        peer=OTHER,
        run_id=RunId("run-0123456789abcdef"),
        protocol_major=PROTOCOL_MAJOR,
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
    table = Membership(ME)
    assert table.seen(record(), now=at(0), is_news=True)
    assert table.live(now=at(LIVE_S - 0.1)) == [OTHER]
    assert table.live(now=at(LIVE_S + 0.1)) == []
    assert table.known() == [OTHER]


def test_record_from_disk_says_nothing_about_the_present() -> None:
    table = Membership(ME)
    assert not table.seen(record(), now=at(0), is_news=False)
    assert table.known() == [OTHER]
    assert table.live(now=at(0)) == []


def test_hearsay_makes_nobody_live_however_new_it_is() -> None:
    table = Membership(ME)
    assert not table.seen(record(), now=at(0), is_news=False)
    assert not table.seen(record(sequence=2), now=at(1), is_news=False)
    assert table.views(now=at(1)) == (), "nothing is known of it itself"
    assert table.heard(OTHER, now=at(2)), "it answers us itself"
    assert table.live(now=at(2)) == [OTHER]
    assert [view.peer for view in table.views(now=at(2 + LIVE_S))] == [OTHER], "and is known to be lost later"
    assert not table.heard(OTHER, now=at(3)), "that is no news"


def test_names_without_end_push_nobody_out_who_is_there() -> None:
    table = Membership(ME)
    table.seen(record(), now=at(0), is_news=True)
    table.seen(record(peer=PeerId("QmSilent")), now=at(0), is_news=True)
    for number in range(2 * PEERS_MAX):
        table.seen(record(peer=PeerId(f"QmGhost{number}")), now=at(10), is_news=False)
    assert len(table.known()) == PEERS_MAX
    assert {OTHER, PeerId("QmSilent")} < set(table.known())
    for number in range(PEERS_MAX):
        table.heard(OTHER, now=at(20))
        table.seen(record(peer=PeerId(f"QmSybil{number}")), now=at(20), is_news=True)
    assert OTHER in table.known()
    assert len(table.known()) == PEERS_MAX
    assert not table.seen(record(peer=PeerId("QmLate")), now=at(20), is_news=True), "all that are known live"


def test_old_news_does_not_end_the_life_that_fresh_news_showed() -> None:
    table = Membership(ME)
    table.seen(record(), now=at(0), is_news=True)
    table.seen(record(sequence=2), now=at(5), is_news=False)
    assert table.live(now=at(LIVE_S - 0.1)) == [OTHER]
    assert table.live(now=at(LIVE_S + 0.1)) == []


def test_unreachable_peer_is_given_up_sooner() -> None:
    table = Membership(ME)
    table.seen(record(), now=at(0), is_news=True)
    table.reached(OTHER, False)
    assert table.live(now=at(UNREACHABLE_LIVE_S + 0.1)) == []


def test_leaving_peer_is_not_waited_for() -> None:
    table = Membership(ME)
    table.seen(record(), now=at(0), is_news=True)
    table.seen(record(sequence=2, state="left"), now=at(1), is_news=True)
    assert table.live(now=at(1)) == []


def test_our_own_stall_blames_nobody() -> None:
    table = Membership(ME)
    table.tick(now=at(0))
    table.seen(record(), now=at(0), is_news=True)
    table.tick(now=at(40))
    assert table.live(now=at(40)) == [OTHER]
    table.tick(now=at(41))
    assert table.live(now=at(41 + LIVE_S)) == [OTHER], "own bad health makes us patient"
    assert table.live(now=at(41 + LIVE_S * table.patience)) == []


def test_view_tells_the_round_machine_height_and_training() -> None:
    table = Membership(ME)
    table.seen(record(), now=at(0), is_news=True)
    (view,) = table.views(now=at(0))
    assert (view.peer, view.is_live, view.is_training, view.height) == (OTHER, True, True, 3)
    table.seen(record(sequence=2, state="catching_up"), now=at(1), is_news=True)
    assert not table.views(now=at(1))[0].is_training


def test_own_record_is_not_a_peer() -> None:
    table = Membership(ME)
    assert not table.seen(record(peer=ME), now=at(0), is_news=True)
    assert table.known() == []


def test_silent_peer_is_suspect_and_probed_before_it_is_dead() -> None:
    table = Membership(ME)
    table.seen(record(), now=at(0), is_news=True)
    assert table.to_probe(now=at(SUSPECT_S - 0.1)) == []
    assert table.state(OTHER, now=at(SUSPECT_S + 0.1)) == SUSPECT
    assert table.to_probe(now=at(SUSPECT_S + 0.1)) == [OTHER]
    assert table.state(OTHER, now=at(LIVE_S)) == DEAD


def test_newer_record_refutes_death_and_an_echo_does_not() -> None:
    table = Membership(ME)
    table.seen(record(), now=at(0), is_news=True)
    assert not table.seen(record(), now=at(LIVE_S + 1), is_news=True), "an echo of its last record"
    assert table.state(OTHER, now=at(LIVE_S + 1)) == DEAD
    assert table.seen(record(sequence=2), now=at(LIVE_S + 1), is_news=True)


def test_old_record_does_not_bring_back_who_left() -> None:
    table = Membership(ME)
    table.seen(record(sequence=5, state="left"), now=at(0), is_news=True)
    table.seen(record(sequence=4), now=at(1), is_news=True)
    table.heard(OTHER, now=at(1))
    assert table.state(OTHER, now=at(1)) == LEFT
    assert table.seen(record(incarnation=2), now=at(2), is_news=True)


def test_own_health_recovers() -> None:
    table = Membership(ME)
    for second in (0, 40, 80):
        table.tick(now=at(second))
    assert table.patience == 2.0
    for second in range(81, 130):
        table.tick(now=at(second))
    assert table.patience == 1.0


def test_when_everybody_falls_silent_at_once_we_are_patient() -> None:
    table = Membership(ME)
    for name in ("QmA", "QmB"):
        table.seen(record(peer=PeerId(name)), now=at(0), is_news=True)
    for second in range(12):
        table.tick(now=at(second))
    assert len(table.live(now=at(LIVE_S + 1))) == 2


def test_only_a_training_peer_is_expected_to_contribute() -> None:
    """I11: nobody waits for the contribution of a site that is paused, prepares or catches up."""
    expected = {}
    for state in PEER_STATES:
        table = Membership(ME)
        table.seen(record(state=state), now=at(0), is_news=True)
        (view,) = table.views(now=at(1))
        expected[state] = view.is_training and view.is_live
    assert [state for state, is_due in expected.items() if is_due] == ["training"]


def test_who_is_gone_is_dead_at_once_until_it_says_something_itself() -> None:
    table = Membership(ME)
    table.seen(record(), now=at(0), is_news=True)
    assert table.gone(OTHER, now=at(0.1))
    assert table.state(OTHER, now=at(0.1)) == DEAD
    assert not table.gone(OTHER, now=at(0.2)), "no news"
    assert not table.seen(record(sequence=2), now=at(0.3), is_news=False), "others may pass on what it said before"
    assert not table.is_live(OTHER, now=at(0.3))
    assert table.heard(OTHER, now=at(0.4))
    table.gone(OTHER, now=at(0.5))
    assert table.seen(record(sequence=3), now=at(0.6), is_news=True)
    assert not table.gone(PeerId("QmUnknown"), now=at(0.7))


def test_bytes_of_a_live_peer_keep_it_live_and_end_its_suspicion() -> None:
    table = Membership(ME)
    table.seen(record(), now=at(0), is_news=True)
    table.reached(OTHER, False)
    table.moved(OTHER, now=at(SUSPECT_S + 0.1))
    assert table.state(OTHER, now=at(SUSPECT_S + 0.2)) == ALIVE
    assert table.is_live(OTHER, now=at(SUSPECT_S + 0.1 + LIVE_S - 0.1)), "no probe is unanswered since then"
    assert not table.is_live(OTHER, now=at(SUSPECT_S + 0.1 + LIVE_S + 0.1))


def test_bytes_that_come_late_bring_nobody_back() -> None:
    """What was on its way when its sender died, left, was cut off or fell silent."""
    table = of_peers("gone", "left", "cut", "silent", "b")
    table.seen(record(peer=PeerId("hearsay")), now=at(0), is_news=False)
    table.gone(PeerId("gone"), now=at(1))
    table.seen(record(peer=PeerId("left"), sequence=2, state="left"), now=at(1), is_news=True)
    table.hosts(silent("cut", answering=("b", "silent")), now=at(1))
    table.heard(PeerId("b"), now=at(LIVE_S))
    for peer in ("gone", "left", "cut", "silent", "hearsay", "unknown"):
        table.moved(PeerId(peer), now=at(LIVE_S))
    assert table.live(now=at(LIVE_S)) == ["b"]
    assert table.silence(PeerId("gone"), at(LIVE_S)) == LIVE_S


def silent(*peers: str, answering: tuple[str, ...] = ()) -> HostsHeard:
    return HostsHeard(frozenset(map(PeerId, answering)), frozenset(map(PeerId, peers)))


def of_peers(*names: str) -> Membership:
    table = Membership(ME)
    for name in names:
        table.seen(record(peer=PeerId(name)), now=at(0), is_news=True)
    return table


def test_whose_host_is_silent_is_dead_while_most_others_answer() -> None:
    table = of_peers("b", "c")
    assert table.hosts(silent("c", answering=("b",)), now=at(1))
    assert table.live(now=at(1)) == ["b"]
    assert not table.hosts(silent("c", answering=("b",)), now=at(1.2)), "no news"
    assert table.hosts(silent(answering=("b", "c")), now=at(2))
    assert table.live(now=at(2)) == ["b", "c"]


def test_halves_that_lose_each_other_wait_as_before() -> None:
    table = of_peers("b", "c", "d")
    table.hosts(silent("c", answering=("b", "d")), now=at(1))
    assert table.live(now=at(1)) == ["b", "d"], "d answered a moment ago"
    assert not table.hosts(silent("c", "d", answering=("b",)), now=at(1.2))
    assert table.live(now=at(1.2)) == ["b", "d"], "c is not there, and d is waited for"


def test_who_is_cut_off_stays_so_while_connections_to_others_are_opened_anew() -> None:
    table = of_peers("b", "c")
    table.hosts(silent("c", answering=("b",)), now=at(1))
    assert not table.hosts(silent("c"), now=at(1.1))
    assert table.live(now=at(1.1)) == ["b"]


def test_nobody_is_taken_for_cut_off_by_one_that_hears_nobody() -> None:
    for names in (("b",), ("b", "c")):
        table = of_peers(*names)
        assert not table.hosts(silent(*names), now=at(1))
        assert table.live(now=at(1)) == list(names)


def test_who_was_silent_and_says_something_itself_is_live_whatever_others_pass_on() -> None:
    table = of_peers("b", "c")
    table.hosts(silent("c", answering=("b",)), now=at(1))
    table.seen(record(peer=PeerId("c"), sequence=2), now=at(1.1), is_news=False)
    assert not table.is_live(PeerId("c"), now=at(1.1))
    assert table.heard(PeerId("c"), now=at(1.2))
