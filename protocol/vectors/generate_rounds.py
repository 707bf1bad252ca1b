"""Transcripts of one peer in a round (chapters 06, 07): `python generate_rounds.py > rounds.json` in protocol/vectors.

Each transcript is a list of steps: something happens to the peer (a message of another peer, its own contribution, an
answer of its disk or its worker, time), and it MUST send exactly `sends` ("*" = to every live peer), apart from Ready,
which it may repeat, and MUST do exactly `does`, in this order. Written from the chapters, without dilocoxd.
"""

import json
import sys

import canonical
from canonical import REGISTRY, coordinator_order, genesis, keys, offer, pack, sha256, signed_vote

RUN_ID = "golden-transcripts"
GENESIS = genesis(RUN_ID, b"{}")
STATE = sha256(b"state 0")
NEXT_STATE = sha256(b"state 1")
KEYS = keys()
INNER_STEPS = 25
RESULTS = [sha256(b"result 0"), sha256(b"result 1")]


def message(name, **fields):
    """Encoded message: fields in the order of the registry."""
    spec = REGISTRY["messages"][name]
    return pack([spec["number"], *(fields[field] for field, _ in spec["fields"])])


def coordinators(peers, round_index, attempt):
    return coordinator_order(RUN_ID, peers, round_index, attempt)


def shares(peer, phase=0):
    return [sha256(f"share {peer} {phase} {segment}".encode()) for segment in range(2)]


def contribution(peer, phase=0, base=0, steps=INNER_STEPS, tokens=6400):
    return [peer, phase, base, steps, tokens, sha256(b"".join(shares(peer, phase)))]


UNIX_MS = 1_760_000_000_000


def key_of(peer):
    return next(key for key in KEYS if key.peer == peer)


def offer_of(work):
    """The signature of its peer under a contribution."""
    return offer(key_of(work[0]), GENESIS, work)


def ready(attempt=0, offered=None, lock=None, parent=GENESIS, digest=STATE, round_index=0):
    return message(
        "Ready", round=round_index, attempt=attempt, parent=parent, state_digest=digest,
        contribution=offered, offer=None if offered is None else offer_of(offered), lock=lock, bandwidth=0,
    )  # fmt: skip


def propose(members, owners, attempt=0, observers=(), **changes):
    fields = {
        "round": 0, "attempt": attempt, "parent": GENESIS, "state_digest": STATE,
        "contributions": [contribution(peer) for peer in members], "observers": list(observers), "owners": owners,
        "lowrank_r": 0, "next_lowrank_r": 0, "next_inner_steps": INNER_STEPS, "parent_voters": [], "evidence": [],
    }  # fmt: skip
    fields |= changes
    return message("Propose", offers=[offer_of(work) for work in fields["contributions"]], **fields)


def entry(members):
    return [RUN_ID, 0, GENESIS, STATE, [contribution(peer) for peer in members], RESULTS, 0, 0, INNER_STEPS, [], [], []]


def entry_hash(members):
    return canonical.entry_hash(entry(members))


def vote(peer, digest, attempt=0):
    signed = signed_vote(key_of(peer), GENESIS, 0, attempt, GENESIS, digest, UNIX_MS)
    return message("Vote", round=0, parent=GENESIS, entry_hash=digest, vote=signed)


class Transcript:
    """Steps of one peer among others."""

    def __init__(self, name, rules, subject, others):
        self.row = {"name": name, "rules": rules, "subject": subject, "steps": []}
        self.others = others
        self.step({"start": True})
        self.live(others)

    def step(self, event, sends=(), does=()):
        listed = [[peer, data.hex()] for peer, data in sends]
        self.row["steps"].append({"event": event, "sends": listed, "does": list(does)})
        return self

    def live(self, peers):
        return self.step({"peers": [{"peer": peer, "live": peer in peers} for peer in self.others]})

    def says(self, peer, data, sends=(), does=()):
        return self.step({"from": peer, "message": data.hex()}, sends, does)

    def offers(self, peer, sends=(), does=()):
        offered = contribution(peer)
        signature, segments = pack(offer_of(offered)).hex(), [share.hex() for share in shares(peer)]
        return self.step({"offer": pack(offered).hex(), "signature": signature, "segments": segments}, sends, does)

    def arrives(self, peer, kind, segment, digest, sends=(), does=(), attempt=0):
        event = {"segment_from": peer, "kind": kind, "attempt": attempt, "segment": segment, "sha256": digest.hex()}
        return self.step(event, sends, does)

    def reduced(self, segment, sends=(), does=(), attempt=0):
        event = {"reduced": segment, "attempt": attempt, "sha256": RESULTS[segment].hex()}
        return self.step(event, sends, does)

    def commits(self, members):
        """Log, then state: what follows from holding all votes."""
        digest = entry_hash(members)
        committed = message("Committed", round=0, entry_hash=digest)
        phase = [f"settle phase 0 included {self.row['subject'] in members}"] if self.row["subject"] in members else []
        self.step({"persisted": 0}, [("*", committed)], [*phase, "apply 0"])
        return self.step({"applied": 0, "state_digest": NEXT_STATE.hex()}, [], ["finished 0"])


def push(peer, kind, segment):
    return f"push {('share', 'result')[kind]} {segment} to {peer}"


def trio():
    return [key.peer for key in KEYS]


def exchange_of_two(run, me, other, after_vote=()):
    """Two contributors; each owns the segment of its own index. From the accepted proposal to our vote."""
    members = sorted((me, other))
    mine = members.index(me)
    digest = entry_hash(members)
    run.arrives(other, 0, mine, shares(other)[mine], does=[f"reduce {mine}: {' '.join(members)}"])
    run.reduced(mine, does=[push(other, 1, mine)])
    own = [(peer, vote(me, digest)) for peer in members if peer != me]
    run.arrives(other, 1, 1 - mine, RESULTS[1 - mine], sends=own, does=[f"promise 0, vote {digest.hex()[:16]}"])
    return digest


def coordinator_commits():
    a, b, _ = trio()
    me, other = coordinators([a, b], 0, 0)
    members = sorted((me, other))
    run = Transcript("the coordinator proposes, exchanges, votes and commits", "R1 R4 R6 R7 R9 R10 X2 X3", me, [other])
    run.offers(me)
    start = [push(other, 0, members.index(other))]
    run.says(other, ready(offered=contribution(other)), [(other, propose(members, [0, 1]))], start)
    digest = exchange_of_two(run, me, other)
    run.says(other, vote(other, digest), does=[f"persist {digest.hex()[:16]} with votes {' '.join(members)}"])
    return run.commits(members)


def member_commits():
    a, b, _ = trio()
    other, me = coordinators([a, b], 0, 0)
    members = sorted((me, other))
    run = Transcript("a member takes part, and its vote comes last", "R1 R7 R9 R10 X2 X3", me, [other])
    run.offers(me).says(other, ready(offered=contribution(other)))
    run.says(other, propose(members, [0, 1]), does=[push(other, 0, members.index(other))])
    digest = entry_hash(members)
    run.says(other, vote(other, digest))
    mine = members.index(me)
    run.arrives(other, 0, mine, shares(other)[mine], does=[f"reduce {mine}: {' '.join(members)}"])
    run.reduced(mine, does=[push(other, 1, mine)])
    persist = f"persist {digest.hex()[:16]} with votes {' '.join(members)}"
    own = [(other, vote(me, digest))]
    run.arrives(other, 1, 1 - mine, RESULTS[1 - mine], own, [f"promise 0, vote {digest.hex()[:16]}", persist])
    return run.commits(members)


def observer_commits():
    a, b, c = trio()
    order = coordinators([a, b, c], 0, 0)
    first, me = order[0], order[-1]
    members = sorted(set(order) - {me})
    run = Transcript("an observer accepts, receives and commits without a vote", "R2 R8 R10", me, members)
    for peer in members:
        run.says(peer, ready(offered=contribution(peer)))
    accept = message("Accept", round=0, attempt=0, coordinator=first)
    # The proposal tells the other contributor's part as well; an observer promises to all members, on disk first (R2).
    sends = [(peer, accept) for peer in members]
    run.says(first, propose(members, [0, 1], observers=[me]), sends, does=["promise 0"])
    run.arrives(members[0], 1, 0, RESULTS[0])
    run.arrives(members[1], 1, 1, RESULTS[1])
    digest = entry_hash(members)
    run.says(members[0], vote(members[0], digest))
    persist = f"persist {digest.hex()[:16]} with votes {' '.join(members)}"
    run.says(members[1], vote(members[1], digest), does=[persist])
    return run.commits(members)


def refused_proposals():
    a, b, _ = trio()
    other, me = coordinators([a, b], 0, 0)
    members = sorted((me, other))
    wrong = {
        "another digest": {"state_digest": bytes(32)},
        "members not sorted": {"contributions": [contribution(peer) for peer in reversed(members)]},
        "a member that is an observer too": {"observers": [me]},
        "owner out of range": {"owners": [0, 2]},
        "one owner for two segments": {"owners": [0]},
        "tokens over the cap": {"contributions": [contribution(p, tokens=10**6 + (p != me)) for p in members]},
        "steps over the cap": {"contributions": [contribution(p, steps=25 if p == me else 1001) for p in members]},
        "base that does not exist": {"contributions": [contribution(p, base=int(p != me)) for p in members]},
        "another low rank": {"lowrank_r": 8},
        "another number of inner steps": {"next_inner_steps": 26},
    }
    for what, changes in wrong.items():
        run = Transcript(f"refused proposal: {what}", "R7", me, [other])
        run.offers(me).says(other, ready(offered=contribution(other)))
        run.says(other, propose(members, **({"owners": [0, 1]} | changes)), does=[f"report {other}"])
        # The right one still counts.
        yield run.says(other, propose(members, [0, 1]), does=[push(other, 0, members.index(other))])


def refused_votes():
    a, b, _ = trio()
    me, other = coordinators([a, b], 0, 0)
    members = sorted((me, other))
    digest = entry_hash(members)
    third = signed_vote(KEYS[2], GENESIS, 0, 0, GENESIS, digest, UNIX_MS)
    stolen = message("Vote", round=0, parent=GENESIS, entry_hash=digest, vote=[other, *third[1:]])
    for what, data in (("of somebody else", vote(me, digest)), ("with another key", stolen)):
        run = Transcript(f"refused vote: {what}", "O1 I4 R10", me, [other])
        run.offers(me)
        start = [push(other, 0, members.index(other))]
        run.says(other, ready(offered=contribution(other)), [(other, propose(members, [0, 1]))], start)
        exchange_of_two(run, me, other)
        run.says(other, data, does=[f"report {other}"])
        persist = f"persist {digest.hex()[:16]} with votes {' '.join(members)}"
        yield run.says(other, vote(other, digest), does=[persist])


def asked_about_the_past():
    a, b, _ = trio()
    me, other = coordinators([a, b], 0, 0)
    members = sorted((me, other))
    run = coordinator_commits()
    run.row["name"], run.row["rules"] = "asked about a round that is over: own last vote, then the head", "R15"
    digest = entry_hash(members)
    committed = message("Committed", round=0, entry_hash=digest)
    return run.says(other, ready(offered=contribution(other)), [(other, vote(me, digest)), (other, committed)])


def locked_entry(other_is_locked):
    """We voted, then the attempt failed. In the next one: finish the entry, or be free of it."""
    a, b, _ = trio()
    me, other = coordinators([a, b], 0, 0)
    members = sorted((me, other))
    digest = entry_hash(members)
    what = "the other voter is locked too: finish it" if other_is_locked else "the other voter never voted: free"
    run = Transcript(f"lock rule: {what}", "R2 R3 R12 R13 X5", me, [other])
    run.offers(me)
    start = [push(other, 0, members.index(other))]
    run.says(other, ready(offered=contribution(other)), [(other, propose(members, [0, 1]))], start)
    exchange_of_two(run, me, other)
    abandon = message("Abandon", round=0, attempt=0, reason="lost", blames=[])
    run.says(other, abandon, does=["failed 0", "cancel below 1", f"promise 1, vote {digest.hex()[:16]}"])
    lock = [0, digest, members, True]
    said = ready(attempt=1, offered=contribution(other), lock=lock if other_is_locked else None)
    leads = coordinators([a, b], 0, 1)[0] == me
    mine = members.index(me)
    # X5: the share that came in attempt 0 is still here, so the segment that we own can be reduced at once.
    restart = ["cancel below 1", push(other, 0, 1 - mine), f"reduce {mine}: {' '.join(members)}"]
    if not leads:
        finish = message("ProposeCommit", round=0, attempt=1, lock=lock, voters=members)
        run.says(other, said)
        if other_is_locked:
            again = f"promise 1, vote {digest.hex()[:16]} of attempt 1"
            run.says(other, finish, [(other, vote(me, digest, attempt=1))], [again])
        else:
            run.says(other, propose(members, [0, 1], attempt=1), does=restart)
        return run
    if other_is_locked:
        finish = message("ProposeCommit", round=0, attempt=1, lock=lock, voters=members)
        again = f"promise 1, vote {digest.hex()[:16]} of attempt 1"
        return run.says(other, said, [(other, finish), (other, vote(me, digest, attempt=1))], [again])
    again = propose(members, [0, 1], attempt=1)
    return run.says(other, said, [(other, again)], restart)


def main():
    rows = [coordinator_commits(), member_commits(), observer_commits(), *refused_proposals(), *refused_votes()]
    rows += [asked_about_the_past(), locked_entry(True), locked_entry(False)]
    document = {
        "chapter": "06-rounds",
        "run_id": RUN_ID,
        "genesis": GENESIS.hex(),
        "state_digest": STATE.hex(),
        "unix_ms": UNIX_MS,
        "caps": {"tokens_max": 10**6, "inner_steps_max": 1000},
        "inner_steps": INNER_STEPS,
        "segment_bytes": [100, 100],
        "transcripts": [run.row for run in rows],
    }
    json.dump(document, sys.stdout, indent=0)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
