"""Branches that no peer may append, and why: golden vectors of chapters 05 and 06. Written without dilocoxd."""

from canonical import entry_hash, offer, pack, signed_vote
from entries import GENESIS, KEYS, OTHER_RUN, chain, contribution, contributors, entry, evidence, offers, vote


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
