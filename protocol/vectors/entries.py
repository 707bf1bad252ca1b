"""Makers of entries, votes, offers and evidence for the golden vectors of the chain.

With the keys, the run and a chain of three entries. Written from the chapters, without dilocoxd.
"""

import hashlib

from canonical import entry_hash, genesis, keys, merkle_root, offer, sha256, signed_vote

MANIFEST = b'{"run":{"name":"golden"}}'
RUN_ID = "golden-" + hashlib.sha256(MANIFEST).hexdigest()[:16]
KEYS = keys()
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
