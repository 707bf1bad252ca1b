"""Decides who is waited for and who is believed: the one book about all other peers, kept as long as the process lives.

Tips and phase times lie in the same records (tips.py, pace.py); what counts at one height only is in readiness.py.
Source: protocol/06-rounds.md (peer standing; R5, R6, R10, R12, R17, R19).
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Final

from dilocoxd.ids import Digest, Monotonic, PeerId, RoundIndex
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.peers.conflicts import Conflicts
from dilocoxd.machines.peers.double_votes import DoubleVotes
from dilocoxd.machines.peers.pace import Pace
from dilocoxd.machines.peers.record import PEERS_MAX, PeerRecords, Standing
from dilocoxd.machines.peers.reverts import Reverts
from dilocoxd.machines.peers.tips import Heartbeat, Tips
from dilocoxd.machines.peers.view import PeerView

SUSPICION_MAX: Final = 3
"""Who goes to a later attempt alone more often than this is neither followed nor waited for; half is forgotten at each
new height. An honest peer gives up attempts too, but the others see the same cause and follow of themselves."""
SUSPICION_KEPT: Final = 4 * SUSPICION_MAX


class PeerBook:
    """All that is held about others, with ourselves as one more peer where that is said."""

    def __init__(self, me: PeerId, limits: RoundLimits) -> None:
        self.me: Final = me
        self._limits: Final = limits
        self.records: Final = PeerRecords()
        self.tips: Final = Tips(limits, self.records)
        self.pace: Final = Pace(self.records)
        self.conflicts: Final = Conflicts()
        self.double_votes: Final = DoubleVotes()
        self.reverts: Final = Reverts()
        self.tips.dead = self.reverts.dead
        self.awaited: dict[PeerId, Monotonic] = {}
        """Live peers at our head that have joined no attempt of the round, or none since: since when."""
        self._suspected: frozenset[PeerId] = frozenset()
        """Whose record says that it was alone in a later attempt too often."""
        self._live: frozenset[PeerId] | None = None
        """What `live` answers; None after a change of views or goodbyes."""
        self._own_view = PeerView(me, True, False, RoundIndex(0), Digest(b""))
        """What `present_views` said of ourselves last."""

    # --- what enters

    def see(self, views: Iterable[PeerView], chain: ChainView, now: Monotonic, *, is_old: bool = False) -> None:
        """What membership says now. Who was not there and is, has come back after its goodbye. `is_old`: R19.7."""
        told = {view.peer: view for view in views if view.peer != self.me}
        late = {p for p, view in told.items() if self.records[p].heartbeat == (view.height, view.head)}
        for peer, record in self.records.items():
            view = told.get(peer)
            if record.view is not None and not record.view.is_live and view is not None and view.is_live:
                record.has_departed = False
            if view is not None and not view.is_live:
                record.tip.is_at_our_head = False  # it may come back without what it had (R19.6)
                record.tip.ignored_height = RoundIndex(0)
                self.awaited.pop(peer, None)
            record.view = self._corrected(record, view)
        self._make_room(told.keys())
        for peer in told.keys() - self.records.keys():
            record = self.records.put(peer)
            record.view = self._corrected(record, told[peer])
        self.pace.absent(peer for peer, view in told.items() if not view.is_live)
        self._live = None
        for view in [record.view for peer, record in self.records.items() if peer in told]:
            if view is None or not view.is_live or view.height == 0:
                continue
            # One that was known when the peer claimed something else does not take that back.
            if view.peer not in late or not self.tips.is_contradicted(chain, view):
                told_by: Heartbeat = "repeated" if view.peer in late else "new"
                self.tips.hear(chain, view.peer, view.height, view.head, now, told_by)
        for peer in [one for one, claim in self.tips.claims.items() if not self._is_there(one, claim.said_at, now)]:
            self.tips.withdraw(peer)
        if is_old:
            self.tips.grow_old(now)

    def _make_room(self, told: Set[PeerId]) -> None:
        """Ids cost nothing: beyond PEERS_MAX, whom membership knows no more is forgotten, first of whom nothing is
        noted, then who came first."""
        if len(self.records) + len(told) <= PEERS_MAX:
            return
        num_over = len(self.records.keys() | told) - PEERS_MAX
        others = [peer for peer in self.records if peer not in told]
        others.sort(key=lambda peer: self.records[peer].is_noted)
        for peer in others[: max(0, num_over)]:
            self.tips.forget(peer)
            del self.records[peer]
        self._suspected &= self.records.keys()

    def _is_there(self, peer: PeerId, said_at: Monotonic, now: Monotonic) -> bool:
        """Whether what this peer said then counts. Who talks to us is there although its record was lost or is on its
        way: two that start beside a run would else begin one of their own (R19.6)."""
        record = self.records[peer]
        is_stranger = record.view is None and not record.has_departed
        return record.is_live or (is_stranger and now - said_at < self._limits.progress_timeout_s)

    @staticmethod
    def _corrected(record: Standing, view: PeerView | None) -> PeerView | None:
        """What membership says, but not again what the peer's own word has overtaken (R6)."""
        before, heartbeat = record.view, (view.height, view.head) if view is not None else None
        is_old = heartbeat is not None and heartbeat == record.heartbeat
        record.heartbeat = heartbeat
        if view is None or before is None or not is_old or (before.height, before.head) == heartbeat:
            return view
        return replace(view, height=before.height, head=before.head)

    def fell_back(self, peer: PeerId, height: RoundIndex, head: Digest) -> None:
        """The peer says itself that it stands further down: it answers, and is at our head no more, whatever older
        heartbeats said."""
        record = self.records[peer]
        record.tip.is_at_our_head = record.has_missed_join = False
        self.awaited.pop(peer, None)
        if record.view is not None:
            record.view = replace(record.view, height=height, head=head)

    def goodbye(self, peer: PeerId, *, has_departed: bool) -> None:
        """The peer said that it leaves, or showed that it is back."""
        record = self.records.of(peer)
        if has_departed != record.has_departed:
            record.has_departed = has_departed
            self._live = None

    def joined(self, peer: PeerId) -> None:
        """The peer showed that it is in our attempt, or in a later one: it is waited for again, for its whole time."""
        self.records[peer].has_missed_join = False
        self.awaited.pop(peer, None)

    def awaits(self, peers: Iterable[PeerId], now: Monotonic) -> None:
        """Of all others these alone have not joined the attempt; who has not since an earlier one is silent for so long
        already. What we did not hear while we caught up is no silence: nobody is awaited then."""
        self.awaited = {peer: self.awaited.get(peer, now) for peer in peers}

    def accepted(self, peer: PeerId) -> None:
        """The peer answered a proposal that it observes: its acceptance is waited for again."""
        self.records[peer].has_missed_accept = False

    def contributed(self, peer: PeerId) -> None:
        """The peer has something to offer: its contribution is waited for again."""
        self.records[peer].is_straggler = False

    def raised(self, peer: PeerId) -> None:
        """The peer was alone in a later attempt once more."""
        record = self.records.of(peer)
        record.suspicion = min(SUSPICION_KEPT, record.suspicion + 1)
        if record.suspicion > SUSPICION_MAX:
            self._suspected |= {peer}

    def waited_in_vain(
        self, *, joining: Iterable[PeerId] = (), accepting: Iterable[PeerId] = (), offering: Iterable[PeerId] = ()
    ) -> None:
        """They had their time: nobody waits again for what they did not do, until they do it."""
        for peer in joining:
            self.records.of(peer).has_missed_join = True
        for peer in accepting:
            self.records.of(peer).has_missed_accept = True
        for peer in offering:
            self.records.of(peer).is_straggler = True

    def reach(self, chain: ChainView) -> None:
        """A new height: claims are compared with it, half of the lone raises are forgotten."""
        self.reverts.reach(chain)
        self.tips.review(chain)
        self.awaited = {}
        for record in self.records.values():
            record.suspicion //= 2
        self._suspected = frozenset([p for p in self._suspected if self.records[p].suspicion > SUSPICION_MAX])

    def stood_still(self, seconds: float) -> None:
        """We were not running for so long (R18)."""
        self.pace.stood_still(seconds)
        self.tips.stood_still(seconds)
        self.awaited = {peer: Monotonic(since + seconds) for peer, since in self.awaited.items()}

    # --- what is asked

    def views(self) -> dict[PeerId, PeerView]:
        """What membership says of each other peer that it knows."""
        return {peer: record.view for peer, record in self.records.items() if record.view is not None}

    def view(self, peer: PeerId) -> PeerView | None:
        return self.records[peer].view

    def live(self) -> frozenset[PeerId]:
        """Ourselves and everybody worth waiting for."""
        if self._live is None:
            self._live = frozenset([self.me, *(peer for peer, record in self.records.items() if record.is_live)])
        return self._live

    def is_live(self, peer: PeerId) -> bool:
        return peer in self.live()

    def is_lost(self, peer: PeerId) -> bool:
        """Was there, or said goodbye, and is there no more. One of which membership never heard may be on its way: a
        coordinator that knows both of us names us together (R12.10)."""
        record = self.records[peer]
        return not self.is_live(peer) and (record.view is not None or record.has_departed)

    def is_witness(self, peer: PeerId, now: Monotonic) -> bool:
        """Whether it has to be asked before anything is committed here (R8.7): it lives, or stands here by its own word
        of a moment ago though membership has not heard of it. Two that start at once would else go on each alone."""
        tip = self.records[peer].tip
        return self.is_live(peer) or (tip.is_at_our_head and self._is_there(peer, tip.our_head_said_at, now))

    def is_alone_with(self, peer: PeerId) -> bool:
        """Nobody else is there."""
        return not self.live() - {self.me, peer}

    def present(self) -> Set[PeerId]:
        """Live peers without those that stand on a chain that recovery could not take: they will not answer here."""
        unconfirmed = self.tips.unconfirmed
        return self.live() - unconfirmed if unconfirmed else self.live()

    def present_views(self, chain: ChainView, *, is_training: bool) -> dict[PeerId, PeerView]:
        """What membership and they themselves say of those, with ourselves as one more peer."""
        views: dict[PeerId, PeerView] = {}
        present = self.present()
        for peer, record in self.records.items():
            view = record.view
            if view is None or peer not in present:
                continue
            if record.tip.is_at_our_head and (view.height, view.head) != (chain.height, chain.head):
                view = PeerView(peer, view.is_live, view.is_training, chain.height, chain.head, view.step_seconds)
            views[peer] = view
        own = self._own_view
        if (own.is_training, own.height, own.head) != (is_training, chain.height, chain.head):
            own = self._own_view = PeerView(self.me, True, is_training, chain.height, chain.head)
        views[self.me] = own
        return views

    def is_suspected(self, peer: PeerId) -> bool:
        """Was alone in a later attempt too often: not followed, not waited for, not proposed."""
        return peer in self._suspected

    def suspected(self) -> frozenset[PeerId]:
        """All of those that live."""
        return self._suspected & self.live() if self._suspected else self._suspected

    def is_silent(self, peer: PeerId) -> bool:
        """Did not accept, or not join, when it should have."""
        record = self.records[peer]
        return record.has_missed_accept or record.has_missed_join


def step_times(views: Mapping[PeerId, PeerView]) -> dict[PeerId, float]:
    """Times of an inner step at the sites that train, as far as they say them."""
    return {p: v.step_seconds for p, v in views.items() if v.is_live and v.is_training and v.step_seconds}
