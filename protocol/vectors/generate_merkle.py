"""Golden vectors of X10 and X14: `python generate_merkle.py > merkle.json` in protocol/vectors.

Roots and proofs of small trees, written by the recursive definition of RFC 9162 section 2.1, and proofs that MUST be
refused. Written from the chapter, without dilocoxd.
"""

import json
import sys

from canonical import half, merkle_root, pack, sha256

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 33)


def leaves(count):
    return [sha256(b"segment %d" % index) for index in range(count)]


def proof(index, hashes):
    if len(hashes) == 1:
        return []
    k = half(len(hashes))
    if index < k:
        return [*proof(index, hashes[:k]), merkle_root(hashes[k:])]
    return [*proof(index - k, hashes[k:]), merkle_root(hashes[:k])]


def row(hashes, index):
    return {
        "leaves": len(hashes),
        "index": index,
        "segment_hash": hashes[index].hex(),
        "root": merkle_root(hashes).hex(),
        "proof": [value.hex() for value in proof(index, hashes)],
    }


def good():
    for count in SIZES:
        hashes = leaves(count)
        for index in range(count) if count < 10 else (0, count // 2, count - 1):
            yield row(hashes, index)


def broken():
    five = leaves(5)
    base = row(five, 2)
    lone = row(five, 4)
    alone = row(leaves(1), 0)
    nodes = [sha256(b"\0" + value) for value in five]
    yield "another segment hash", base | {"segment_hash": five[3].hex()}
    yield "another index", base | {"index": 3}
    yield "another root", base | {"root": merkle_root(leaves(6)).hex()}
    yield "one hash too few", base | {"proof": base["proof"][:-1]}
    yield "one hash too many", base | {"proof": [*base["proof"], bytes(32).hex()]}
    yield "order of the proof", base | {"proof": base["proof"][::-1]}
    yield "no proof", base | {"proof": []}
    yield "index beyond the tree", base | {"index": 5}
    yield "index far beyond the tree", base | {"index": 2**40}
    yield "negative index", base | {"index": -1}
    yield "a tree of another size", base | {"leaves": 9}
    yield "the lone leaf under two siblings", lone | {"proof": [*lone["proof"], *lone["proof"]]}
    yield "the lone leaf without its sibling", lone | {"proof": []}
    yield "a leaf's hash as the segment hash", base | {"segment_hash": nodes[2].hex()}
    inner = sha256(b"\1" + nodes[0] + nodes[1])
    yield "a node as a leaf of a smaller tree", base | {"leaves": 3, "index": 0, "segment_hash": inner.hex()}
    yield "a root without the leaf's prefix", alone | {"root": alone["segment_hash"]}
    yield "a root with the node's prefix", alone | {"root": sha256(b"\1" + leaves(1)[0]).hex()}
    for count in (2, 3, 4, 7, 8, 9, 13, 33):
        hashes = leaves(count)
        last = row(hashes, count - 1)
        yield f"last of {count} as the first", last | {"index": 0}
        for position, value in enumerate(last["proof"]):
            flipped = bytes([bytes.fromhex(value)[0] ^ 1]).hex() + value[2:]
            wrong = [*last["proof"][:position], flipped, *last["proof"][position + 1 :]]
            yield f"last of {count}, one bit of hash {position}", last | {"proof": wrong}
    for count in (2, 3, 4, 5, 6, 7, 8, 9, 13, 33):
        hashes = leaves(count)
        swapped = [hashes[1], hashes[0], *hashes[2:]]
        yield f"{count} leaves, first two swapped", row(hashes, 0) | {"root": merkle_root(swapped).hex()}
        yield f"{count} leaves, last one missing", row(hashes, 0) | {"root": merkle_root(hashes[:-1]).hex()}


def shares(count, leaves_of_each=5, index=2):
    """One share of each of `count` contributors, each under a root of its own."""
    for contributor in range(count):
        hashes = [sha256(b"segment %d of %d" % (number, contributor)) for number in range(leaves_of_each)]
        yield [hashes[index], proof(index, hashes)], merkle_root(hashes)


def sum_proof(count, **shape):
    found = list(shares(count, **shape))
    return {
        "contributions": count,
        "leaves": shape.get("leaves_of_each", 5),
        "index": shape.get("index", 2),
        "roots": [root.hex() for _, root in found],
        "bytes": pack([[share for share, _ in found]]).hex(),
    }


def sum_proofs():
    yield sum_proof(1)
    yield sum_proof(3)
    yield sum_proof(20, leaves_of_each=33, index=32)
    yield sum_proof(2, leaves_of_each=1, index=0)


def broken_sum_proofs():
    """(what is wrong, how many contributions the entry has, bytes)."""
    found = [share for share, _ in shares(3)]
    good = pack([found])
    long = [[bytes(32), [bytes(32)] * 32] for _ in range(3)]
    yield "nothing", 3, b""
    yield "cut", 3, good[:-1]
    yield "bytes after it", 3, good + b"\0"
    yield "shares of two for three contributions", 3, pack([found[:2]])
    yield "shares of three for two contributions", 2, good
    yield "no shares", 3, pack([[]])
    yield "a field too many", 3, pack([found, 0])
    yield "a field missing", 3, pack([])
    yield "a share without its proof", 3, pack([[*found[:2], found[2][:1]]])
    yield "a share with a field too many", 3, pack([[*found[:2], [*found[2], 0]]])
    yield "a hash of 31 bytes", 3, pack([[*found[:2], [found[2][0][:-1], found[2][1]]]])
    yield "a sibling of 33 bytes", 3, pack([[*found[:2], [found[2][0], [bytes(33)]]]])
    yield "a proof of 33 hashes", 3, pack([[*long[:2], [bytes(32), [bytes(32)] * 33]]])
    yield "text for a hash", 3, pack([[*found[:2], ["x" * 32, found[2][1]]]])
    yield "a map", 3, b"\x81" + good[1:]


def main():
    document = {
        "chapter": "07 X10",
        "proofs": list(good()),
        "broken_proofs": [{"broken": what} | fields for what, fields in broken()],
        "sum_proofs": list(sum_proofs()),
        "broken_sum_proofs": [
            {"broken": what, "contributions": count, "bytes": data.hex()} for what, count, data in broken_sum_proofs()
        ],
    }
    json.dump(document, sys.stdout, indent=0)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
