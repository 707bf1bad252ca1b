"""Golden vectors of chapters 02, 03, 05 and 06: `python generate_chain.py > chain.json` in protocol/vectors.

Peer ids, run id, records, a chain of three entries with votes, coordinator order, roots and digests, and each of them
broken. Written from the chapters, without dilocoxd.
"""

import hashlib
import json
import struct
import sys

from canonical import (
    REGISTRY,
    coordinator_order,
    entry_hash,
    frame,
    genesis,
    keys,
    merkle_root,
    offer,
    pack,
    plain,
    sha256,
    signed_vote,
)

MANIFEST = b'{"run":{"name":"golden"}}'
RUN_ID = "golden-" + hashlib.sha256(MANIFEST).hexdigest()[:16]
KEYS = keys()
RECORD_FIELDS = [name for name, _ in REGISTRY["structs"]["PeerRecord"]["fields"]]
RECORD = {
    "peer": KEYS[0].peer,
    "run_id": RUN_ID,
    "protocol_major": REGISTRY["protocol"]["major"],
    "protocol_minor": REGISTRY["protocol"]["minor"],
    "incarnation": 3,
    "sequence": 41,
    "unix_ms": 1_760_000_000_000,
    "ttl_ms": 30_000,
    "state": "training",
    "addresses": ["/ip4/192.0.2.7/tcp/7700", "/ip6/2001:db8::7/tcp/7700", "/dns4/site.example.org/tcp/7700"],
    "chain_head": bytes(range(32)),
    "chain_height": 12,
    "chain_weight": 1_000_000,
    "state_digest": bytes(range(32, 64)),
    "contributed_round": 11,
    "milli_steps_per_s": 2_500,
    "tokens_per_s": 40_000,
    "upload_bytes_per_s": 12_500_000,
    "name": "gpu-box_3.lab",
}


def record_body(**changes):
    record = RECORD | changes
    return pack([record[name] for name in RECORD_FIELDS])


def signed(body, key=KEYS[0], domain=b"dilocoxd/2/record\0"):
    return pack([body, key.public, key.sign(domain + body)])


def valid_records():
    left = {"state": "left", "contributed_round": -1, "chain_height": 0}
    names = (
        {"name": ""},
        {"name": "a"},
        {"name": "x" * 32, "state": "paused"},
        {"name": "7", "state": "preparing"},
        {"name": "h", "state": "halted"},
    )
    for changes in ({}, {"addresses": []}, left, *names):
        body = record_body(**changes)
        fields = plain([(RECORD | changes)[name] for name in RECORD_FIELDS])
        yield {"fields": fields, "body": body.hex(), "bytes": signed(body).hex()}


def broken_records():
    good = signed(record_body())
    yield "last bit of the signature", good[:-1] + bytes([good[-1] ^ 1]), "bad_signature"
    yield "signed by another key", signed(record_body(), KEYS[1]), "bad_signature"
    yield "another domain", signed(record_body(), domain=b"dilocoxd/2/vote\0"), "bad_signature"
    yield "another run", signed(record_body(run_id="golden-0000000000000000")), "wrong_run"
    yield "another major", signed(record_body(protocol_major=RECORD["protocol_major"] + 1)), "wrong_protocol"
    yield "unknown state", signed(record_body(state="asleep")), "malformed"
    yield "state in capitals", signed(record_body(state="HALTED")), "malformed"
    yield "udp address", signed(record_body(addresses=["/ip4/192.0.2.7/udp/7700/quic"])), "malformed"
    yield "port 0", signed(record_body(addresses=["/ip4/192.0.2.7/tcp/0"])), "malformed"
    yield "port 65536", signed(record_body(addresses=["/ip4/192.0.2.7/tcp/65536"])), "malformed"
    yield "ip6 text in ip4", signed(record_body(addresses=["/ip4/2001:db8::7/tcp/1"])), "malformed"
    yield "17 addresses", signed(record_body(addresses=["/ip4/192.0.2.7/tcp/1"] * 17)), "malformed"
    yield "no life", signed(record_body(ttl_ms=0)), "malformed"
    yield "contributed before the first round", signed(record_body(contributed_round=-2)), "malformed"
    for name in ("x" * 33, "two words", "-a", "a.", "a\x1b[2Jb", "a\nb", "caf\u00e9", "\u202eevil"):
        yield f"name {name!a}", signed(record_body(name=name)), "malformed"
    yield "short head", signed(record_body(chain_head=bytes(31))), "malformed"
    yield "peer is no peer id", signed(record_body(peer="0" * 46)), "malformed"
    yield "bytes after the record", signed(record_body() + b"\0"), "malformed"
    yield "bytes after the signature", good + b"\0", "malformed"
    yield "short signature", pack([record_body(), KEYS[0].public, bytes(255)]), "bad_key"
    yield "key that is none", pack([record_body(), b"\x30\x00", bytes(256)]), "bad_key"
    yield "too large", pack([record_body(), KEYS[0].public, bytes(9000)]), "too_large"


GENESIS = genesis(RUN_ID, MANIFEST)


def contribution(key, phase, base, tokens):
    segments = [sha256(f"{key.peer} {phase} {s}".encode()) for s in range(3)]
    return [key.peer, phase, base, 25, tokens, merkle_root(segments)]


def entry(round_index, parent, contributions, voters=(), evidence=(), ramps=()):
    digest = sha256(b"state %d" % round_index)
    results = [sha256(b"result %d %d" % (round_index, s)) for s in range(3)]
    decided = [0, 0, 25, list(voters), list(evidence), list(ramps)]
    return [RUN_ID, round_index, parent, digest, contributions, results, *decided]


def contributors(fields):
    """What the next entry has as its parent_voters."""
    return [part[0] for part in fields[4]]


UNIX_MS = 1_760_000_000_000
OTHER_RUN = genesis("golden-0000000000000000", MANIFEST)


def vote(key, fields, digest=None, run=GENESIS, attempt=0, unix_ms=None):
    """Of this key for the entry with these fields, signed some ms after the one of the key before."""
    at = UNIX_MS + 1000 * fields[1] + KEYS.index(key) if unix_ms is None else unix_ms
    return signed_vote(key, run, fields[1], attempt, fields[2], entry_hash(fields) if digest is None else digest, at)


def offers(fields):
    """Signatures of all whom the entry names."""
    by_peer = {key.peer: key for key in KEYS}
    return [offer(by_peer[contribution[0]], GENESIS, contribution) for contribution in fields[4]]


def evidence(key, round_index, attempt, parent, run=GENESIS):
    """Two votes in one attempt (R27)."""
    digests = sorted(sha256(b"voted %d" % n) for n in range(2))
    signed = [signed_vote(key, run, round_index, attempt, parent, d, UNIX_MS + n) for n, d in enumerate(digests)]
    voted = [[digest, vote[2], vote[3][1]] for digest, vote in zip(digests, signed, strict=True)]
    return [key.peer, key.public, round_index, attempt, parent, *voted]


def chain():
    """Three entries: all three peers, two, two with a phase whose base is one round old and an equivocation."""
    groups = (
        [(KEYS[0], 0, 0, 6400), (KEYS[1], 0, 0, 6400), (KEYS[2], 0, 0, 3200)],
        [(KEYS[0], 1, 1, 6400), (KEYS[1], 1, 1, 6400)],
        [(KEYS[0], 2, 1, 6400), (KEYS[2], 2, 2, 70_000)],
    )
    parent, voters = GENESIS, []
    for round_index, group in enumerate(groups):
        found = [evidence(KEYS[1], 1, 0, parent)] if round_index == 2 else []
        fields = entry(round_index, parent, [contribution(*part) for part in group], voters, found)
        parent, voters = entry_hash(fields), contributors(fields)
        yield fields, [vote(part[0], fields) for part in group]


def entry_rows():
    for fields, votes in chain():
        data = pack([fields, offers(fields), votes])
        median = sorted(vote[2] for vote in votes)[(len(votes) - 1) // 2]
        yield {"fields": plain(fields), "hash": entry_hash(fields).hex(), "bytes": data.hex(), "unix_ms": median}


def broken_entries():
    fields, votes = next(chain())
    swapped = [*fields[:4], [fields[4][1], fields[4][0], fields[4][2]], *fields[5:]]
    twice = [*fields[:4], [fields[4][0], *fields[4]], *fields[5:]]
    good = offers(fields)
    by_peer = dict(zip([c[0] for c in fields[4]], good, strict=True))
    yield "contributions not sorted", pack([swapped, [by_peer[c[0]] for c in swapped[4]], votes])
    yield "a peer twice", pack([twice, [good[0], *good], votes])
    yield "no contribution", pack([[*fields[:4], [], *fields[5:]], [], votes])
    yield "no vote", pack([fields, good, []])
    yield "no result", pack([[*fields[:5], [], *fields[6:]], good, votes])
    no_tokens = [[*fields[4][0][:4], 0, fields[4][0][5]]]
    yield "no tokens", pack([[*fields[:4], no_tokens, *fields[5:]], good[:1], votes[:1]])
    yield "an offer less", pack([fields, good[:-1], votes])
    yield "no offer", pack([fields, [], votes])
    yield "votes not sorted", pack([fields, good, votes[::-1]])
    yield "a vote twice", pack([fields, good, [votes[0], *votes]])
    later = vote(KEYS[2], fields, attempt=1)
    yield "votes of two attempts", pack([fields, good, [*votes[:2], later]])
    yield "negative time", pack([fields, good, [[*votes[0][:2], -1, votes[0][3]], *votes[1:]]])
    peers = [key.peer for key in KEYS]
    yield "voters not sorted", pack([[*fields[:9], peers[::-1], *fields[10:]], good, votes])
    found = [evidence(key, 0, 0, GENESIS) for key in (KEYS[0], KEYS[0])]
    yield "evidence against a peer twice", pack([[*fields[:10], found, []], good, votes])
    yield "nine equivocations", pack([[*fields[:10], found[:1] * 9, []], good, votes])
    for ramps in ([64], [64, 64, 0], [64, 64, 65], [64, 64, 21, 21]):
        yield f"ramps {ramps}", pack([[*fields[:11], ramps], good, votes])
    yield "the layout of version 1", pack([fields[:9], votes, 0])


def broken_branches():
    """(what, code, signed entries) that no peer may append to an empty chain; caps: 10^6 tokens, 1000 steps."""
    (first, first_votes), (second, second_votes), _ = list(chain())
    digest = entry_hash(first)

    def with_votes(votes):
        return [pack([first, offers(first), votes])]

    def with_offers(given):
        return [pack([first, given, first_votes])]

    def alone(fields, key=KEYS[0]):
        return [pack([fields, offers(fields), [vote(key, fields)]])]

    def all_but_last(last):
        return with_votes([*first_votes[:2], last])

    yield "vote for another entry", "bad_signature", all_but_last(vote(KEYS[2], first, bytes(32)))
    yield "vote of another run", "bad_signature", all_but_last(vote(KEYS[2], first, run=OTHER_RUN))
    yield "vote under another name", "bad_signature", all_but_last([KEYS[2].peer, *vote(KEYS[0], first)[1:]])
    good = vote(KEYS[2], first)
    yield "vote of another attempt", "bad_signature", with_votes([[v[0], 1, *v[2:]] for v in first_votes])
    yield "vote of another time", "bad_signature", all_but_last([*good[:2], good[2] + 1, good[3]])
    other_parent = signed_vote(KEYS[2], GENESIS, 0, 0, bytes(32), digest, good[2])
    yield "vote on another parent", "bad_signature", all_but_last(other_parent)
    other_round = signed_vote(KEYS[2], GENESIS, 1, 0, GENESIS, digest, good[2])
    yield "vote of another round", "bad_signature", all_but_last(other_round)
    right = offers(first)
    changed = [*first[4][2][:4], first[4][2][4] - 1, first[4][2][5]]
    yield "offer of other work", "bad_offer", with_offers([*right[:2], offer(KEYS[2], GENESIS, changed)])
    yield "offer of another run", "bad_offer", with_offers([*right[:2], offer(KEYS[2], OTHER_RUN, first[4][2])])
    yield "offer signed by another", "bad_offer", with_offers([*right[:2], offer(KEYS[1], GENESIS, first[4][2])])
    yield "offer that is a vote", "bad_offer", with_offers([*right[:2], good[3]])
    yield "gap", "malformed", [pack([second, offers(second), second_votes])]
    orphan = alone([*second[:2], bytes(32), second[3], second[4][1:], *second[5:]], KEYS[1])
    yield "another parent", "malformed", [pack([first, offers(first), first_votes]), *orphan]
    yield "another run", "malformed", alone(["golden-0000000000000000", *first[1:]])

    def claiming(base, tokens):
        return [*first[:4], [contribution(KEYS[0], 0, base, tokens)], *first[5:]]

    yield "vote of somebody who did not contribute", "bad_signature", alone(claiming(0, 6400), KEYS[1])
    yield "over the token cap", "out_of_range", alone(claiming(0, 10**6 + 1))
    yield "base that does not exist yet", "out_of_range", alone(claiming(1, 6400))
    known = contributors(first)
    for what, named in (("none", []), ("one less", known[1:]), ("another", [*known[:2], "z"])):
        broken = alone([*second[:4], [contribution(KEYS[0], 1, 1, 6400)], *second[5:9], named, *second[10:]])
        yield f"{what} as parent voters", "malformed", [pack([first, offers(first), first_votes]), *broken]
    again = [second[0], 1, digest, second[3], [contribution(KEYS[0], 0, 0, 6400)], *second[5:]]
    yield "a phase twice", "malformed", [pack([first, offers(first), first_votes]), *alone(again)]
    yield from branches_with_evidence()


def branches_with_evidence():
    """As above: what R27 forbids. KEYS[1] voted twice in attempt 0 of round 0; entry 1 may hold that."""
    found = evidence(KEYS[1], 0, 0, GENESIS)

    def of(parts, held=(), below=None):
        before = first if below is None else below
        named = [contribution(*part) for part in parts]
        return entry(before[1] + 1, entry_hash(before), named, contributors(before), held)

    def voted(fields):
        by_peer = {key.peer: key for key in KEYS}
        return pack([fields, offers(fields), [vote(by_peer[named[0]], fields) for named in fields[4]]])

    first = entry(0, GENESIS, [contribution(key, 0, 0, 6400) for key in KEYS])
    two = [(KEYS[0], 1, 1, 6400), (KEYS[2], 1, 1, 6400)]
    good = of(two, [found])

    def holding(*held):
        return [voted(first), voted(of(two, held))]

    def after_good(parts, held=()):
        return [voted(first), voted(good), voted(of(parts, held, good))]

    other = evidence(KEYS[2], 0, 0, GENESIS)
    yield "evidence signed by another", "bad_evidence", holding([found[0], *other[1:]])
    yield "evidence whose votes another has signed", "bad_evidence", holding([*found[:5], *other[5:]])
    yield "evidence of another run", "bad_evidence", holding(evidence(KEYS[1], 0, 0, GENESIS, OTHER_RUN))
    yield "evidence of another attempt", "bad_evidence", holding([*found[:3], 1, *found[4:]])
    yield "evidence on another parent", "bad_evidence", holding([*found[:4], bytes(32), *found[5:]])
    yield "evidence in the wrong order", "bad_evidence", holding([*found[:5], found[6], found[5]])
    yield "evidence of one vote", "bad_evidence", holding([*found[:6], found[5]])
    yield "evidence of a later round", "bad_evidence", holding(evidence(KEYS[1], 2, 0, GENESIS))
    everybody = [(key, 1, 1, 6400) for key in KEYS]
    yield "accused beside others", "bad_evidence", [voted(first), voted(of(everybody, [found]))]
    yield "left out and named", "bad_evidence", after_good([(KEYS[0], 2, 2, 6400), (KEYS[1], 2, 2, 6400)])
    yield "left out and accused", "bad_evidence", after_good([(KEYS[0], 2, 2, 6400)], [found])
    alone = entry(0, GENESIS, [contribution(KEYS[0], 0, 0, 6400)])
    stranger = of([(KEYS[0], 1, 1, 6400)], [found], alone)
    yield "evidence against who never contributed", "bad_evidence", [voted(alone), voted(stranger)]


PROBATION = 2
"""Rounds of it in the branches below: the weight of who enters rises from 21 over 42 to 64 64ths."""


def branches_on_probation():
    """(what, code or "", founders, signed entries) on an empty chain of a run with PROBATION (M11)."""
    old, new, newer = KEYS

    def grown(*groups, voters=None):
        """A chain of these groups of (key, ramp); a ramp of 0: the entry has none. `voters` of the last entry."""
        parent, before, made = GENESIS, [], []
        for number, group in enumerate(groups):
            parts = [contribution(key, number, number, 6400) for key, _ in group]
            fields = entry(number, parent, parts, before, (), [ramp for _, ramp in group if ramp])
            who = voters if voters and number == len(groups) - 1 else [key for key, _ in group]
            made.append(pack([fields, offers(fields), [vote(key, fields) for key in who]]))
            parent, before = entry_hash(fields), contributors(fields)
        return made

    start, first, second = [(old, 0)], [(old, 64), (new, 21)], [(old, 64), (new, 42)]
    both, all_three = [(old, 0), (new, 0)], [(old, 64), (new, 64), (newer, 21)]
    yield "", "", [], grown(start, first, second, both, [(new, 0)], all_three)
    yield "", "", [], grown([(old, 0), (new, 0)], all_three)
    yield "", "", [old.peer, newer.peer], grown([(old, 64), (new, 21), (newer, 64)], [(newer, 0)])
    yield "", "", [], grown(start, first, voters=[old])
    yield "whole weight in its first entry", "malformed", [], grown(start, [(old, 0), (new, 0)])
    yield "whole weight that is named", "malformed", [], grown(start, [(old, 64), (new, 64)])
    yield "ramp that rises too fast", "malformed", [], grown(start, first, [(old, 64), (new, 43)])
    yield "ramp that does not rise", "malformed", [], grown(start, first, first)
    yield "on probation for too long", "malformed", [], grown(start, first, second, second)
    yield "a member on probation", "malformed", [], grown(start, [(old, 21)])
    yield "ramps without need", "malformed", [], grown([(old, 64)])
    yield "nobody but on probation", "bad_quorum", [], grown(start, [(new, 21)])
    yield "votes of one on probation only", "bad_quorum", [], grown(start, first, voters=[new])
    yield "two on probation beside one", "bad_quorum", [], grown(start, [(old, 64), (new, 21), (newer, 21)])
    yield "begun by who is no founder", "bad_quorum", [new.peer], grown([(old, 21)])
    yield "a founder whom nobody named", "malformed", [new.peer], grown([(old, 0), (new, 0)])


def coordinators():
    peers = [key.peer for key in KEYS]
    for round_index, attempt in ((0, 0), (0, 1), (1, 0), (7, 3), (1000, 64)):
        order = coordinator_order(RUN_ID, peers, round_index, attempt)
        yield {"round": round_index, "attempt": attempt, "order": order}


def digests():
    anchors, momenta = [[1.0, -0.5, 3.0e-5, 0.0], [2.0, -0.0]], [[0.25, 0.0, -0.0, 1.0e-3], [0.0, 4.0]]
    for round_index, header, kept in ((0, b"", (b"", b"")), (3, b"{}".ljust(1024), (b"result", b"norms"))):
        rows, alone = [], []
        for index, (anchor, momentum) in enumerate(zip(anchors, momenta, strict=True)):
            begun = b"dilocoxd/2/segment\0" + struct.pack(">Q", index) + floats(anchor)
            alone.append(sha256(begun))
            digest = sha256(begun + floats(momentum) + kept[index])
            row = {"anchor": anchor, "momentum": momentum, "memory": kept[index].hex(), "segment_hash": digest.hex()}
            rows.append(row)
        leaves = b"".join(bytes.fromhex(row["segment_hash"]) for row in rows)
        yield {
            "round": round_index,
            "header": header.hex(),
            "segments": rows,
            "anchor_hash": sha256(b"dilocoxd/2/anchor\0" + b"".join(alone)).hex(),
            "state_digest": sha256(b"dilocoxd/2/state\0" + struct.pack(">Q", round_index) + header + leaves).hex(),
        }


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def hello():
    """The first frame of a stream (S6)."""
    number = REGISTRY["messages"]["Hello"]["number"]
    return frame(
        5, pack([number, *REGISTRY["protocol"].values(), RUN_ID, 1_760_000_000_000, signed(record_body()), b"", 31338])
    )


def main():
    document = {
        "chapter": "02, 03, 05, 06",
        "manifest": MANIFEST.decode(),
        "run_id": RUN_ID,
        "genesis": GENESIS.hex(),
        "peers": [{"public_key": key.public.hex(), "peer": key.peer} for key in KEYS],
        "records": list(valid_records()),
        "broken_records": [{"broken": w, "bytes": b.hex(), "code": c} for w, b, c in broken_records()],
        "entries": list(entry_rows()),
        "broken_entries": [{"broken": w, "bytes": b.hex()} for w, b in broken_entries()],
        "broken_branches": [
            {"broken": what, "code": code, "entries": [data.hex() for data in entries]}
            for what, code, entries in broken_branches()
        ],
        "probation": [
            {
                "broken": what,
                "code": code,
                "probation_rounds": PROBATION,
                "founders": founders,
                "entries": [data.hex() for data in entries],
            }
            for what, code, founders, entries in branches_on_probation()
        ],
        "coordinators": list(coordinators()),
        "state_digests": list(digests()),
        "hello": hello().hex(),
    }
    json.dump(document, sys.stdout, indent=0)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
