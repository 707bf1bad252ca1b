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
}


def record_body(**changes):
    record = RECORD | changes
    return pack([record[name] for name in RECORD_FIELDS])


def signed(body, key=KEYS[0], domain=b"dilocoxd/1/record\0"):
    return pack([body, key.public, key.sign(domain + body)])


def valid_records():
    for changes in ({}, {"addresses": []}, {"state": "left", "contributed_round": -1, "chain_height": 0}):
        body = record_body(**changes)
        fields = plain([(RECORD | changes)[name] for name in RECORD_FIELDS])
        yield {"fields": fields, "body": body.hex(), "bytes": signed(body).hex()}


def broken_records():
    good = signed(record_body())
    yield "last bit of the signature", good[:-1] + bytes([good[-1] ^ 1]), "bad_signature"
    yield "signed by another key", signed(record_body(), KEYS[1]), "bad_signature"
    yield "another domain", signed(record_body(), domain=b"dilocoxd/1/vote\0"), "bad_signature"
    yield "another run", signed(record_body(run_id="golden-0000000000000000")), "wrong_run"
    yield "another major", signed(record_body(protocol_major=RECORD["protocol_major"] + 1)), "wrong_protocol"
    yield "unknown state", signed(record_body(state="asleep")), "malformed"
    yield "udp address", signed(record_body(addresses=["/ip4/192.0.2.7/udp/7700/quic"])), "malformed"
    yield "port 0", signed(record_body(addresses=["/ip4/192.0.2.7/tcp/0"])), "malformed"
    yield "port 65536", signed(record_body(addresses=["/ip4/192.0.2.7/tcp/65536"])), "malformed"
    yield "ip6 text in ip4", signed(record_body(addresses=["/ip4/2001:db8::7/tcp/1"])), "malformed"
    yield "17 addresses", signed(record_body(addresses=["/ip4/192.0.2.7/tcp/1"] * 17)), "malformed"
    yield "no life", signed(record_body(ttl_ms=0)), "malformed"
    yield "contributed before the first round", signed(record_body(contributed_round=-2)), "malformed"
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
    return [key.peer, phase, base, 25, tokens, sha256(b"".join(segments))]


def entry(round_index, parent, contributions):
    digest = sha256(b"state %d" % round_index)
    results = [sha256(b"result %d %d" % (round_index, s)) for s in range(3)]
    return [RUN_ID, round_index, parent, digest, contributions, results, 0, 0, 25]


def vote(key, digest, run_id=RUN_ID):
    return signed_vote(key, digest, run_id)


def chain():
    """Three entries: all three peers, one alone, two with a phase whose base is one round old."""
    groups = (
        [(KEYS[0], 0, 0, 6400), (KEYS[1], 0, 0, 6400), (KEYS[2], 0, 0, 3200)],
        [(KEYS[1], 1, 1, 6400)],
        [(KEYS[0], 1, 1, 6400), (KEYS[2], 2, 2, 70_000)],
    )
    parent = GENESIS
    for round_index, group in enumerate(groups):
        fields = entry(round_index, parent, [contribution(*part) for part in group])
        parent = entry_hash(fields)
        yield fields, [vote(part[0], parent) for part in group]


def entry_rows():
    for fields, votes in chain():
        data = pack([fields, votes, 1_760_000_000_000 + fields[1]])
        yield {"fields": plain(fields), "hash": entry_hash(fields).hex(), "bytes": data.hex()}


def broken_entries():
    fields, votes = next(chain())
    swapped = [*fields[:4], [fields[4][1], fields[4][0], fields[4][2]], *fields[5:]]
    twice = [*fields[:4], [fields[4][0], *fields[4]], *fields[5:]]
    yield "contributions not sorted", pack([swapped, votes, 0])
    yield "a peer twice", pack([twice, votes, 0])
    yield "no contribution", pack([[*fields[:4], [], *fields[5:]], votes, 0])
    yield "no vote", pack([fields, [], 0])
    yield "no result", pack([[*fields[:5], [], *fields[6:]], votes, 0])
    yield "negative time", pack([fields, votes, -1])
    yield "no tokens", pack([[*fields[:4], [[*fields[4][0][:4], 0, fields[4][0][5]]], *fields[5:]], votes, 0])


def broken_branches():
    """(what, code, signed entries) that no peer may append to an empty chain; caps: 10^6 tokens, 1000 steps."""
    (first, first_votes), (second, second_votes), _ = list(chain())
    digest = entry_hash(first)

    def with_votes(votes):
        return [pack([first, votes, 0])]

    def alone(fields, key=KEYS[0]):
        return [pack([fields, [vote(key, entry_hash(fields))], 0])]

    yield "vote for another entry", "bad_signature", with_votes([vote(KEYS[0], bytes(32))])
    yield "vote of another run", "bad_signature", with_votes([vote(KEYS[0], digest, "golden-0000000000000000")])
    yield "one of three votes is wrong", "bad_signature", with_votes([*first_votes[:2], vote(KEYS[2], bytes(32))])
    yield "vote under another name", "bad_signature", with_votes([[KEYS[1].peer, *vote(KEYS[0], digest)[1:]]])
    yield "gap", "malformed", [pack([second, second_votes, 0])]
    orphan = alone([*second[:2], bytes(32), *second[3:]], KEYS[1])
    yield "another parent", "malformed", [pack([first, first_votes, 0]), *orphan]
    yield "another run", "malformed", alone(["golden-0000000000000000", *first[1:]])

    def claiming(base, tokens):
        return [*first[:4], [contribution(KEYS[0], 0, base, tokens)], *first[5:]]

    yield "vote of somebody who did not contribute", "bad_signature", alone(claiming(0, 6400), KEYS[1])
    yield "over the token cap", "out_of_range", alone(claiming(0, 10**6 + 1))
    yield "base that does not exist yet", "out_of_range", alone(claiming(1, 6400))
    again = [second[0], 1, digest, second[3], [contribution(KEYS[0], 0, 0, 6400)], *second[5:]]
    yield "a phase twice", "malformed", [pack([first, first_votes, 0]), *alone(again)]


def coordinators():
    peers = [key.peer for key in KEYS]
    for round_index, attempt in ((0, 0), (0, 1), (1, 0), (7, 3), (1000, 64)):
        order = coordinator_order(RUN_ID, peers, round_index, attempt)
        yield {"round": round_index, "attempt": attempt, "order": order}


def digests():
    anchor, momentum = [1.0, -0.5, 3.0e-5, 0.0], [0.25, 0.0, -0.0, 1.0e-3]
    halves = [sha256(struct.pack(f"<{len(values)}f", *values)) for values in (anchor, momentum)]
    return {"anchor": anchor, "momentum": momentum, "state_digest": sha256(halves[0] + halves[1]).hex()}


def hello():
    """The first frame of a stream (S6)."""
    number = REGISTRY["messages"]["Hello"]["number"]
    return frame(5, pack([number, *REGISTRY["protocol"].values(), RUN_ID, 1_760_000_000_000, signed(record_body())]))


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
        "coordinators": list(coordinators()),
        "state_digest": digests(),
        "hello": hello().hex(),
    }
    json.dump(document, sys.stdout, indent=0)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
