"""Every book that is keyed by peers is listed here with what bounds it: names cost nobody anything, memory does."""

import ast
from collections.abc import Iterator
from typing import Final

from tests.architecture.walks import ROOT

PLACES = (
    "swarm", "daemon/audit", "daemon/observe", "daemon/peers", "daemon/recovery", "daemon/round",
    "machines/admission", "machines/audit", "machines/exchange", "machines/membership", "machines/peers",
    "machines/recovery", "machines/round",
)  # fmt: skip
BOOKS: Final = ("dict", "OrderedDict", "Counter", "set", "defaultdict")
KEYS: Final = ("PeerId", "tuple[PeerId", "str", "Hashable", "StreamPlace", "Membership", "Question")

CAPS: Final = {
    "daemon/audit/inputs.py RoundInputs._trees": "contributors of one entry",
    "daemon/observe/alert_rules.py AlertWatch._raised_at": "codes, not peers",
    "daemon/observe/alert_rules.py AlertWatch._since": "codes, not peers",
    "daemon/observe/earlier.py EarlierLives._standing": "codes, not peers",
    "daemon/observe/journal.py Journal.alerts": "codes, not peers",
    "daemon/observe/journal.py Journal.validation_by_source": "stores of the run, not peers",
    "daemon/observe/names.py SiteNames._names": "NAMES_KEPT",
    "daemon/observe/other_sites.py OtherLosses._sites": "SITES_KEPT",
    "daemon/observe/other_sites.py OthersTimeline._sites": "SITES_KEPT",
    "daemon/observe/other_sites.py OthersTimeline._states": "the sites of _sites",
    "daemon/observe/site.py SiteHistory._harmful": "NAMED_MAX",
    "daemon/observe/site.py SiteHistory._states": "workers, not peers",
    "daemon/peers/dial_back.py DialBack._asked": "PEERS_TRACKED",
    "daemon/peers/losses.py LossAsker._next": "PEERS_KEPT",
    "daemon/peers/membership.py MembershipDriver._probing": "suspects in the table: at most its PEERS_MAX",
    "daemon/peers/outside.py OutsideView._words": "PEERS_KEPT",
    "daemon/peers/outside.py _Word.reached": "addresses, not peers: ADDRESSES_TRIED in one answer",
    "daemon/peers/port_book.py PortBook._ports": "SITES_MAX, of sites in touch",
    "daemon/round/inbox.py RoundInbox._own_room": "who has a stream that waits: at most the room's streams",
    "machines/admission/gate.py AdmissionBook._set_aside": "the keys of revocations",
    "machines/admission/gate.py AdmissionBook._signed_by": "the keys of revocations",
    "machines/admission/gate.py AdmissionBook.members": "MEMBERS_MAX",
    "machines/admission/gate.py AdmissionBook.on_credit": "members, and who was revoked meanwhile",
    "machines/admission/gate.py AdmissionBook.revocations": "REVOKED_MAX",
    "machines/admission/vote_book.py VoteBook.votes": "UNDECIDED_MAX, and what a fork opened again",
    "machines/audit/claims.py Claims._silenced": "SILENCED_MAX",
    "machines/audit/claims.py Claims._waiting": "TELLERS_MAX",
    "machines/exchange/exchange.py Exchange.signs": "one attempt: its members, and who votes in it",
    "machines/exchange/inbox.py Inbox.kept": "the slots of INBOX",
    "machines/exchange/inbox.py Inbox.phases": "the slots of INBOX",
    "machines/exchange/inbox.py Inbox.roots": "the slots of INBOX",
    "machines/exchange/inbox.py Inbox.slots": "the slots of INBOX",
    "machines/exchange/sends.py OpenSends._shares": "one exchange: its members, to whom something is sent",
    "machines/membership/catch_up.py CatchUp._seen": "live peers of the table while this site starts",
    "machines/membership/hosts.py HostWatch._silent": "routes, ROUTES_MAX",
    "machines/membership/hosts.py HostWatch._slow": "SLOW_KEPT",
    "machines/membership/hosts.py HostWatch._unanswered": "routes, ROUTES_MAX",
    "machines/membership/machine.py Membership._peers": "PEERS_MAX, by hearsay first",
    "machines/peers/standing.py PeerBook.awaited": "live peers at our head",
    "machines/peers/conflicts.py Conflicts.spans": "the pairs of until",
    "machines/peers/conflicts.py Conflicts.until": "three rounds, and pairs of known peers",
    "machines/peers/double_votes.py DoubleVotes.cast": "VOTERS_KEPT, and whom the chain names",
    "machines/peers/double_votes.py DoubleVotes.proofs": "PROOFS_KEPT",
    "machines/peers/false_results.py FalseResults._until": "LIARS_MAX",
    "machines/peers/recovering.py Recovering.asked": "CLAIMS_MAX",
    "machines/peers/readiness.py Readiness._readies": "those of _words",
    "machines/peers/readiness.py Readiness._words": "PEERS_MAX, and the height",
    "machines/peers/tips.py Tips._claiming": "records, PEERS_MAX",
    "machines/peers/tips.py Tips._unconfirmed": "records, PEERS_MAX",
    "machines/recovery/comparison.py ToCompare._added": "CLAIMS_MAX, of one recovery",
    "machines/recovery/snapshot_search.py SnapshotSearch._offers": "sources of one recovery",
    "machines/recovery/snapshot_search.py SnapshotSearch._refusals": "sources of one recovery",
    "machines/recovery/source_faults.py SourceFaults.late": "sources of one recovery",
    "machines/recovery/source_faults.py SourceFaults.liars": "sources of one recovery",
    "machines/round/attempt.py RunningAttempt.left_out_by": "live peers, one attempt",
    "machines/round/attempt.py RunningAttempt.proposals": "PROPOSALS_MAX",
    "machines/round/attempt.py RunningAttempt.shown": "contributors of one proposal",
    "machines/round/height.py Height.buffered": "whom membership knows, and as many + 1 of others",
    "machines/round/locks.py AcceptBox.accepted": "PEERS_MAX, and who is live or in the chain",
    "machines/round/locks.py VoteBox.votes": "PEERS_MAX, and who is live or in the chain",
    "daemon/round/transfers.py Transfers._broken": "segments that we send in an attempt",
    "daemon/round/suspects.py Suspects._contrary": "NAMED_MAX",
    "daemon/round/suspects.py Suspects._drops": "STRIKES_MAX",
    "daemon/round/suspects.py Suspects._outsized": "NAMED_MAX",
    "daemon/round/suspects.py Suspects._strikes": "STRIKES_MAX",
    "daemon/round/suspects.py Suspects._voted_twice": "NAMED_MAX",
    "swarm/direct/listener.py DataListener._anchors": "KEYS_MAX",
    "swarm/direct/listener.py DataListener._keys": "KEYS_MAX",
    "swarm/direct/listener.py DataListener._open": "open connections: the room's streams_all",
    "swarm/direct/looks.py HostLooks._asked": "routes, ROUTES_MAX",
    "swarm/direct/vestibule.py Vestibule._known": "KNOWN_MAX",
    "swarm/direct/plane.py DataPlane._ended": "routes, ROUTES_MAX",
    "swarm/direct/plane.py DataPlane._looking": "routes, ROUTES_MAX",
    "swarm/direct/plane.py DataPlane._routes": "ROUTES_MAX",
    "swarm/direct/plane.py DataPlane._waiting": "ROUTES_MAX",
    "swarm/direct/routes.py Route.contexts": "protocols, not peers",
    "swarm/direct/routes.py Route.idle": "protocols, not peers",
    "swarm/service.py Swarm._handlers": "protocols, not peers",
    "swarm/discovery/contacts.py Contacts._dialling": "known peers: book and file; hearsay HEARSAY_TRIES",
    "swarm/discovery/contacts.py Contacts._hearsay": "HEARSAY_TRIES",
    "swarm/discovery/contacts.py Contacts._met": "those connected: p2pd keeps 512",
    "swarm/discovery/contacts.py Contacts._retries": "RETRIES_MAX",
    "swarm/discovery/contacts.py Whereabouts.bootstrap_peers": "bootstrap addresses: ADDED_MAX",
    "swarm/discovery/contacts.py Contacts._strangers": "those connected: p2pd keeps 512",
    "swarm/discovery/peers_file.py PeersFile.peers": "PEERS_MAX",
    "swarm/discovery/decisions.py GreetedPeers._owed": "TOLD_MAX",
    "swarm/discovery/decisions.py GreetedPeers._told": "TOLD_MAX",
    "swarm/discovery/records.py RecordBook._heard": "half of PEERS_MAX",
    "swarm/discovery/records.py RecordBook._newest": "PEERS_MAX",
    "swarm/p2pd/node.py Node._handlers": "protocols, not peers",
    "swarm/p2pd/connections.py Networks._networks": "NETWORKS_KEPT",
    "swarm/p2pd/unread.py UnreadStreams._counts": "PEERS_MAX",
    "swarm/streams/budget.py Budget._buckets": "keys_max",
    "swarm/streams/budget.py Budget._networks": "keys_max",
    "swarm/streams/budget.py EmptyExchanges._accounts": "keys_max",
    "swarm/streams/assemblies.py Assemblies._assemblies": "ASSEMBLIES_MAX",
    "swarm/streams/throttle.py PeerGates._gates": "GATES_MAX",
    "swarm/streams/throttle.py SendingSpeeds._busy": "payloads under way",
    "swarm/streams/throttle.py SendingSpeeds.bytes_per_s": "SPEEDS_MAX",
    "swarm/streams/throttle.py TokenBucket._lines": "receivers for which a stream, or a node, waits",
    "swarm/streams/doorkeeper.py Doorkeeper._visitors": "VISITORS_MAX",
    "swarm/streams/guard.py PeerGuard._peers": "PEERS_TRACKED_MAX",
    "swarm/streams/guard.py _Entry.counts": "codes, not peers",
    "swarm/streams/messages.py MessageChannel._outboxes": "OUTBOXES_MAX",
    "swarm/streams/messages.py MessageChannel._senders": "OUTBOXES_MAX: it ends with its outbox",
    "swarm/streams/rejections.py Rejections._knocks": "KNOCKERS_MAX",
    "swarm/streams/room.py StreamRoom._bytes": "open streams: streams_all",
    "swarm/streams/room.py StreamRoom._places": "streams_all",
    "swarm/streams/room.py StreamRoom._streams": "open streams: streams_all",
}
"""Place -> the constant or the fact that bounds it."""


def books() -> Iterator[str]:
    """Attributes with an annotation of a book whose key may be a peer, but for counters of events."""
    for place in PLACES:
        for path in sorted((ROOT / "dilocoxd" / place).rglob("*.py")):
            for owner in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(owner, ast.ClassDef):
                    continue
                for node in ast.walk(owner):
                    if isinstance(node, ast.AnnAssign) and (name := _attribute(node, owner)) and _is_book(node):
                        yield f"{path.relative_to(ROOT / 'dilocoxd')} {owner.name}.{name}"


def _attribute(node: ast.AnnAssign, owner: ast.ClassDef) -> str:
    if isinstance(node.target, ast.Attribute):
        return node.target.attr
    return node.target.id if isinstance(node.target, ast.Name) and node in owner.body else ""


def _is_book(node: ast.AnnAssign) -> bool:
    text = ast.unparse(node.annotation).removeprefix("Final[")
    kind, _, key = text.partition("[")
    is_of_events = text.startswith("Counter[str]") and ast.unparse(node.target) == "self.counts"
    return kind in BOOKS and key.startswith(KEYS) and not is_of_events


def test_every_book_about_peers_has_a_limit() -> None:
    found = set(books())
    assert found - CAPS.keys() == set(), "a new book that is keyed by peers: bound it, and say here by what"
    assert CAPS.keys() - found == set(), "a book that is gone"


def test_the_book_of_all_peers_is_the_only_one_of_its_own_class() -> None:
    """PeerRecords: PEERS_MAX, by PeerBook._make_room. Others would not be seen by the test above. IncomingCalls and
    OwnCalls are keyed by calls of the DHT, and keep those under way."""
    found = {
        owner.name
        for place in PLACES
        for path in sorted((ROOT / "dilocoxd" / place).rglob("*.py"))
        for owner in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(owner, ast.ClassDef) and any(ast.unparse(base).startswith(BOOKS) for base in owner.bases)
    }
    assert found == {"PeerRecords", "IncomingCalls", "OwnCalls"}
