"""Golden vectors of chapter 03, M1 to M9, and of links (M6): `python generate_admission.py > admission.json`.

Certificates, memberships and revocations of a run with three authorities of which two must sign, mostly broken ones.
Written from the chapters, without dilocoxd.
"""

import hashlib
import json
import sys

from canonical import base58, keys, pack, plain
from ed25519 import ORDER, EdKey

RUN = hashlib.sha256(b'{"run":{"name":"golden"}}').digest()
OTHER_RUN = hashlib.sha256(b"another run").digest()
AUTHORITIES = [EdKey(bytes([place]) * 32) for place in (1, 2, 3)]
STRANGER = EdKey(b"\x09" * 32)
INVITE = EdKey(b"\x11" * 32)
VOTERS = sorted(keys(), key=lambda key: key.peer)
PEER, OTHER_PEER = (key.peer for key in keys()[:2])
HEAD = hashlib.sha256(b"the last of 40 entries").digest()
THRESHOLD = 2
NOW = 1_760_000_000_000
TERMS = [RUN, 77, INVITE.public, NOW + 604_800_000, 2, "contribute", RUN]


def changed(place, value):
    return [*TERMS[:place], value, *TERMS[place + 1 :]]


def signatures(text, *signers):
    found = [[place, key.sign(text)] for place, key in signers]
    return sorted(found, key=lambda pair: pair[0])


BOTH = tuple(enumerate(AUTHORITIES[:2]))


def certificate(terms=TERMS, signers=BOTH, domain=b"dilocoxd/2/invite\0"):
    return [terms, signatures(domain + pack(terms), *signers)]


def member(cert, peer=PEER, key=INVITE, domain=b"dilocoxd/2/member\0"):
    return [cert, peer, key.sign(domain + pack(cert[0]) + peer.encode())]


def revocation(terms, signers=BOTH, domain=b"dilocoxd/2/revoke\0"):
    return [terms, signatures(domain + pack(terms), *signers), []]


def vote(terms, key, height=40, signed_height=None, domain=b"dilocoxd/2/evict\0"):
    at = (height if signed_height is None else signed_height).to_bytes(8, "big")
    return [key.peer, height, HEAD, [key.public, key.sign(domain + pack(terms) + at + HEAD)]]


def cast(*votes, terms=None):
    return [terms or [RUN, "QmTarget", 77], [], list(votes)]


def valid_votes():
    terms = [RUN, "QmTarget", 77]
    yield cast(vote(terms, VOTERS[0]))
    yield cast(vote(terms, VOTERS[0]), vote(terms, VOTERS[1], 2**63 - 1))


def broken_votes():
    terms = [RUN, "QmTarget", 77]
    one, two = (vote(terms, key) for key in VOTERS[:2])
    other = [RUN, "QmTarget", 78]
    yield "another height than was signed", pack(cast(vote(terms, VOTERS[0], 41, 40))), "bad_signature"
    yield "another domain", pack(cast(vote(terms, VOTERS[0], domain=b"dilocoxd/2/revoke\0"))), "bad_signature"
    yield "serial changed after it was signed", pack(cast(one, terms=other)), "bad_signature"
    yield "vote of another peer", pack(cast([two[0], *one[1:]])), "bad_signature"
    yield "head changed after it was signed", pack(cast([*one[:2], bytes(32), one[3]])), "bad_signature"
    foreign = [OTHER_RUN, "QmTarget", 77]
    yield "another run", pack(cast(vote(foreign, VOTERS[0]), terms=foreign)), "wrong_run"
    yield "not sorted", pack(cast(two, one)), "malformed"
    yield "one peer twice", pack(cast(one, one)), "malformed"
    own = [RUN, VOTERS[0].peer, 77]
    yield "a peer votes for its own eviction", pack(cast(vote(own, VOTERS[0]), terms=own)), "malformed"
    mixed = revocation(terms)
    yield "votes beside signatures of authorities", pack([terms, mixed[1], [one]]), "malformed"
    yield "no entry", pack(cast(vote(terms, VOTERS[0], 0))), "malformed"
    yield "97 votes", pack([terms, [], [one] * 97]), "malformed"


def valid_memberships():
    yield member(certificate())
    yield member(certificate(signers=((0, AUTHORITIES[0]), (2, AUTHORITIES[2]))))
    yield member(certificate(signers=tuple(enumerate(AUTHORITIES))))
    yield member(certificate(changed(5, "observe")))
    yield member(certificate(changed(4, 1024)))
    yield member(certificate(), OTHER_PEER)


def with_bit(data, place=-1):
    flipped = bytearray(data)
    flipped[place] ^= 1
    return bytes(flipped)


def broken_memberships():
    """(what, bytes, code); checked for PEER."""
    good = member(certificate())
    (terms, signed), _, own = good
    yield "last bit of the peer's signature", pack([good[0], PEER, with_bit(own)]), "bad_membership"
    higher = own[:32] + (int.from_bytes(own[32:], "little") + ORDER).to_bytes(32, "little")
    yield "signature whose number is not reduced", pack([good[0], PEER, higher]), "bad_membership"
    yield "signed by somebody else's key", pack(member(certificate(), key=STRANGER)), "bad_membership"
    yield (
        "signed by an authority in place of the invite",
        pack(member(certificate(), key=AUTHORITIES[0])),
        "bad_membership",
    )
    yield "signed in another domain", pack(member(certificate(), domain=b"dilocoxd/2/revoke\0")), "bad_membership"
    yield "another peer's", pack(member(certificate(), OTHER_PEER)), "bad_membership"
    yield "another peer's under our name", pack([good[0], PEER, member(certificate(), OTHER_PEER)[2]]), "bad_membership"
    yield "one authority of two", pack(member(certificate(signers=BOTH[:1]))), "bad_certificate"
    yield (
        "signed by a stranger",
        pack(member(certificate(signers=((0, AUTHORITIES[0]), (1, STRANGER))))),
        "bad_certificate",
    )
    yield (
        "authority that does not exist",
        pack(member(certificate(signers=((0, AUTHORITIES[0]), (3, STRANGER))))),
        "bad_certificate",
    )
    swapped = ((0, AUTHORITIES[1]), (1, AUTHORITIES[0]))
    yield "authorities in each other's place", pack(member(certificate(signers=swapped))), "bad_certificate"
    yield "certificate in another domain", pack(member(certificate(domain=b"dilocoxd/2/member\0"))), "bad_certificate"
    for place, value, what in ((1, 78, "serial"), (3, NOW * 2, "expiry"), (4, 1024, "uses"), (5, "observe", "role")):
        cert = [changed(place, value), signed]
        yield f"{what} changed after it was signed", pack(member(cert)), "bad_certificate"
    cert = [changed(2, STRANGER.public), signed]
    yield "key changed after it was signed", pack(member(cert, key=STRANGER)), "bad_certificate"
    yield "another run", pack(member(certificate(changed(0, OTHER_RUN)))), "wrong_run"
    twice = [terms, [signed[0], signed[0]]]
    yield "one authority twice", pack(member(twice)), "malformed"
    yield "authorities not sorted", pack(member([terms, signed[::-1]])), "malformed"
    yield "no signature", pack(member([terms, []])), "malformed"
    yield "no uses", pack(member(certificate(changed(4, 0)))), "malformed"
    yield "1025 uses", pack(member(certificate(changed(4, 1025)))), "malformed"
    yield "authorities that nobody knows", pack(member(certificate(changed(6, HEAD)))), "unknown_authorities"
    yield "short authorities", pack(member(certificate(changed(6, HEAD[:31])))), "malformed"
    yield "unknown role", pack(member(certificate(changed(5, "king")))), "malformed"
    yield "short run", pack(member(certificate(changed(0, RUN[:31])))), "malformed"
    yield "short key", pack(member(certificate(changed(2, INVITE.public[:31])))), "malformed"
    yield "short signature", pack([good[0], PEER, own[:63]]), "malformed"
    yield "negative serial", pack(member(certificate(changed(1, -1)))), "malformed"
    yield "no peer", pack(member(certificate(), "")), "malformed"
    yield "bytes after the end", pack(good) + b"\0", "malformed"
    yield "a field more", pack([*good, 0]), "malformed"
    yield "cut short", pack(good)[:-1], "malformed"
    yield "nothing", b"", "malformed"
    yield "too large", pack([good[0], PEER, bytes(1600)]), "too_large"


def valid_revocations():
    yield revocation([RUN, PEER, 77])
    yield revocation([RUN, OTHER_PEER, 0], tuple(enumerate(AUTHORITIES)))


def broken_revocations():
    terms = [RUN, PEER, 77]
    good = revocation(terms)
    yield "one authority of two", pack(revocation(terms, BOTH[:1])), "bad_certificate"
    yield "nobody", pack([terms, [], []]), "bad_certificate"
    yield "a stranger", pack(revocation(terms, ((0, AUTHORITIES[0]), (1, STRANGER)))), "bad_certificate"
    yield "another domain", pack(revocation(terms, domain=b"dilocoxd/2/invite\0")), "bad_certificate"
    yield "peer changed after it was signed", pack([[RUN, OTHER_PEER, 77], good[1], []]), "bad_certificate"
    yield "serial changed after it was signed", pack([[RUN, PEER, 78], good[1], []]), "bad_certificate"
    yield "another run", pack(revocation([OTHER_RUN, PEER, 77])), "wrong_run"
    yield "authorities not sorted", pack([terms, good[1][::-1], []]), "malformed"
    yield "short signature", pack([terms, [[0, bytes(63)]], []]), "malformed"
    yield "bytes after the end", pack(good) + b"\0", "malformed"


NEW_KEYS = [EdKey(bytes([place]) * 32).public for place in (21, 22)]
NEW_LIST = [RUN, 1, RUN, NEW_KEYS, 2, 0]


def list_with(place, value):
    return [*NEW_LIST[:place], value, *NEW_LIST[place + 1 :]]


def change(terms=NEW_LIST, signers=BOTH, domain=b"dilocoxd/2/authorities\0"):
    return [terms, signatures(domain + pack(terms), *signers), []]


def replacement(*voters, terms=NEW_LIST, domain=b"dilocoxd/2/replace\0"):
    return [terms, [], [vote(terms, key, domain=domain) for key in voters]]


def valid_changes():
    yield change()
    yield change(signers=tuple(enumerate(AUTHORITIES)))
    yield change(list_with(5, 2**63 - 1))
    yield change([RUN, 1, RUN, NEW_KEYS[:1], 1, 40])
    yield replacement(VOTERS[0])
    yield replacement(VOTERS[0], VOTERS[1])


def broken_changes():
    good, voted = change(), replacement(VOTERS[0], VOTERS[1])
    yield "one authority of two", pack(change(signers=BOTH[:1])), "bad_certificate"
    yield "nobody", pack([NEW_LIST, [], []]), "bad_certificate"
    yield "a stranger", pack(change(signers=((0, AUTHORITIES[0]), (1, STRANGER)))), "bad_certificate"
    yield "authority that does not exist", pack(change(signers=(*BOTH, (3, STRANGER)))), "bad_certificate"
    yield "another domain", pack(change(domain=b"dilocoxd/2/revoke\0")), "bad_certificate"
    yield "key changed after it was signed", pack([list_with(3, NEW_KEYS[::-1]), good[1], []]), "bad_certificate"
    yield "threshold changed after it was signed", pack([list_with(4, 1), good[1], []]), "bad_certificate"
    yield "void_from changed after it was signed", pack([list_with(5, 1), good[1], []]), "bad_certificate"
    yield "another run", pack(change(list_with(0, OTHER_RUN))), "wrong_run"
    yield "number 2 behind list 0", pack(change(list_with(1, 2))), "malformed"
    yield "number 0", pack(change(list_with(1, 0))), "malformed"
    yield "number 65", pack(change(list_with(1, 65))), "malformed"
    yield "no key", pack(change(list_with(3, []))), "malformed"
    yield "a key twice", pack(change(list_with(3, [NEW_KEYS[0], NEW_KEYS[0]]))), "malformed"
    yield "17 keys", pack(change(list_with(3, [bytes([n]) * 32 for n in range(17)]))), "malformed"
    yield "short key", pack(change(list_with(3, [NEW_KEYS[0][:31]]))), "malformed"
    yield "threshold above the number of keys", pack(change(list_with(4, 3))), "malformed"
    yield "threshold 0", pack(change(list_with(4, 0))), "malformed"
    yield "negative void_from", pack(change(list_with(5, -1))), "malformed"
    yield "authorities not sorted", pack([NEW_LIST, good[1][::-1], []]), "malformed"
    yield "votes beside signatures", pack([NEW_LIST, good[1], voted[2]]), "malformed"
    yield "votes not sorted", pack([NEW_LIST, [], voted[2][::-1]]), "malformed"
    yield "one voter twice", pack([NEW_LIST, [], voted[2][:1] * 2]), "malformed"
    yield "vote in the domain of evictions", pack(replacement(VOTERS[0], domain=b"dilocoxd/2/evict\0")), "bad_signature"
    yield "vote for another list", pack([list_with(5, 1), [], voted[2]]), "bad_signature"
    yield "bytes after the end", pack(good) + b"\0", "malformed"
    yield "too large", pack([NEW_LIST, good[1], [bytes(70000)]]), "too_large"


def valid_links():
    _, signed = certificate()
    token = base58(pack([INVITE.seed, *TERMS[1:2], *TERMS[3:6], b"", signed]))
    where = f"/ip4/203.0.113.7/tcp/31337/p2p/{PEER}"
    run, head = RUN.hex(), bytes(range(32)).hex()
    yield f"{where}/run/{run}/at/12/{head}/key/{token}", True
    yield f"/dns4/head.example/tcp/1/p2p/{PEER}/run/{run}/at/0/{head}", False
    yield f"head.example:31337/run/{run}/at/0/{head}/key/{token}", True


def broken_links():
    link, _ = next(valid_links())
    yield "last character", link[:-1]
    yield "no run", link.replace("/run/", "/")
    yield "short run", link.replace(RUN.hex(), RUN.hex()[:-1])
    yield "capital hex", link.replace(RUN.hex(), RUN.hex().upper())
    yield "negative height", link.replace("/at/12/", "/at/-1/")
    yield "not base58", link[:-1] + "0"
    yield "udp", link.replace("/tcp/", "/udp/")
    yield "a space inside", link.replace("/at/", " /at/")
    yield "no checkpoint", link.partition("/at/")[0]
    yield "something behind", link + "/more"


def main():
    document = {
        "chapter": "03, 05",
        "run": RUN.hex(),
        "authorities": [key.public.hex() for key in AUTHORITIES],
        "threshold": THRESHOLD,
        "peer": PEER,
        "seeds": [{"seed": key.seed.hex(), "public": key.public.hex()} for key in (*AUTHORITIES, INVITE)],
        "memberships": [{"fields": plain(fields), "bytes": pack(fields).hex()} for fields in valid_memberships()],
        "broken_memberships": [{"broken": w, "bytes": b.hex(), "code": c} for w, b, c in broken_memberships()],
        "revocations": [{"fields": plain(fields), "bytes": pack(fields).hex()} for fields in valid_revocations()],
        "broken_revocations": [{"broken": w, "bytes": b.hex(), "code": c} for w, b, c in broken_revocations()],
        "votes": [{"fields": plain(fields), "bytes": pack(fields).hex()} for fields in valid_votes()],
        "broken_votes": [{"broken": w, "bytes": b.hex(), "code": c} for w, b, c in broken_votes()],
        "changes": [{"fields": plain(fields), "bytes": pack(fields).hex()} for fields in valid_changes()],
        "broken_changes": [{"broken": w, "bytes": b.hex(), "code": c} for w, b, c in broken_changes()],
        "links": [{"link": link, "has_invite": has} for link, has in valid_links()],
        "broken_links": [{"broken": what, "link": link} for what, link in broken_links()],
    }
    json.dump(document, sys.stdout, indent=0)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
