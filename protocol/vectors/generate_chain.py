"""Golden vectors of chapters 02, 03, 05 and 06: `python generate_chain.py > chain.json` in protocol/vectors.

Peer ids, run id, records, a chain of three entries with votes, coordinator order, roots and digests, and each of them
broken. Written from the chapters, without dilocoxd.
"""

import json
import struct
import sys

from branches import PROBATION, branches_on_probation, broken_branches
from canonical import REGISTRY, coordinator_order, entry_hash, frame, pack, plain, sha256
from entries import GENESIS, KEYS, MANIFEST, RUN_ID, chain, evidence, offers, vote

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
