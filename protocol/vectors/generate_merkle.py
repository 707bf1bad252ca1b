"""Golden vectors of X10: `python generate_merkle.py > merkle.json` in protocol/vectors.

Roots and proofs of small trees, written by the recursive definition of RFC 9162 section 2.1, and proofs that MUST be
refused. Written from the chapter, without dilocoxd.
"""

import json
import sys

from canonical import half, merkle_root, sha256

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


def main():
    document = {
        "chapter": "07 X10",
        "proofs": list(good()),
        "broken_proofs": [{"broken": what} | fields for what, fields in broken()],
    }
    json.dump(document, sys.stdout, indent=0)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
