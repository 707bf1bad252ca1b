"""Golden vectors of chapter 12: `python generate_reading.py > reading.json` in protocol/vectors.

Histories of entries, with what sites read after each of them, and what they would read by a wrong rule. Written from
the chapter, without dilocoxd; queues are lists of numbers here.
"""

import hashlib
import json
import sys

SEQ_LEN = 4
ASKED = (("a", 0), ("a", 1), ("b", 0), ("c", 1))
# longest phase that a contribution may claim, tokens of the shared stores, rounds of absence, share
RUNS = {
    "all shared": (8, 4000, 16, (1, 1)),
    "one of three": (9, 4000, 16, (1, 3)),
    "three of five, one door": (7, 100, 2, (3, 5)),
}
VOLUMES = {"all shared, three volumes": 3, "one of three, two volumes": 2}
RUNS |= {
    "all shared, three volumes": (3, 400, 5, (1, 1)),
    "one of three, two volumes": (6, 400, 8, (1, 3)),
}
# (peer, phase, base round, samples of the phase) by entry
HISTORIES = {
    "two sites": [[("a", 0, 0, 5), ("b", 0, 0, 7)], [("a", 1, 0, 4)], [("a", 2, 1, 7), ("b", 2, 1, 6)]],
    "newcomers at one door": [[("a", 0, 0, 7)], [("b", 0, 0, 7)], [("c", 0, 0, 7)], [("b", 1, 2, 3), ("c", 1, 3, 3)]],
    "old base": [[("a", 0, 0, 3)], [("a", 2, 0, 7)], [("a", 4, 2, 5)]],
    "absence": [[("a", 0, 0, 6)], [("b", 0, 1, 6)], *[[("c", n, n + 2, 7)] for n in range(17)], [("a", 1, 0, 4)]],
    "nothing shared in a short phase": [[("a", 0, 0, 1)], [("a", 1, 0, 2), ("b", 0, 0, 1)]],
}


class Reading:
    """`wrong`: which rule is broken, for the vectors that must not be met."""

    def __init__(self, longest, tokens, absent, share, wrong=""):
        self.share, self.absent, self.wrong = share, absent, wrong
        self.size = max(1, self.shared(longest))
        self.fresh, self.height, self.taken, self.twice = 0, 0, 0, 0
        self.returned, self.sites, self.last, self.left = [], {}, {}, {}
        count = max(1, min(64, tokens // SEQ_LEN // (16 * self.size)))
        self.doors = [self.pair(0) for _ in range(count)]

    def shared(self, count):
        a, b = self.share
        if self.wrong == "all samples counted as shared":
            return count
        return -(-count * a // b) if self.wrong == "shared samples rounded up" else count * a // b

    def fill(self, queue):
        while len(queue) < self.size:
            if self.returned and self.wrong != "what was given back is never read":
                queue.append(self.returned.pop(0))
            else:
                queue.append(self.fresh)
                self.fresh += 1

    def pair(self, since):
        pair = [[[], since], [[], since]]
        for one in pair:
            self.fill(one[0])
        return pair

    def door(self, peer):
        digest = hashlib.blake2b(peer.encode(), digest_size=8, person=b"data-door").digest()
        return int.from_bytes(digest, "little") % len(self.doors)

    def extend(self, entry):
        for peer, phase, base, samples in entry:
            if peer not in self.sites:
                number = self.door(peer)
                self.sites[peer], self.doors[number] = self.doors[number], self.pair(self.height + 1)
            pair = self.sites[peer]
            left = self.left.pop(peer, 0)
            for one in pair:
                one[1] = max(one[1], left)
            self.last[peer] = self.height
            queue = pair[0 if self.wrong == "one queue for all phases" else phase % 2]
            count = self.shared(samples)
            if base < queue[1] and self.wrong != "old bases take samples":
                self.twice += count
                continue
            taken = min(count, len(queue[0]))
            del queue[0][:taken]
            self.taken, self.twice = self.taken + taken, self.twice + count - taken
            self.fill(queue[0])
            queue[1] = self.height + 1
        self.height += 1
        for peer in sorted(self.last):
            if self.height - self.last[peer] > self.absent and self.wrong != "nobody gives back":
                for queue, _ in self.sites.pop(peer):
                    self.returned += queue
                del self.last[peer]
                self.left[peer] = self.height

    def queue(self, peer, phase):
        return (self.sites.get(peer) or self.doors[self.door(peer)])[phase % 2][0]

    def told(self):
        return {
            "read": [{"peer": peer, "phase": phase, "samples": self.queue(peer, phase)} for peer, phase in ASKED],
            "taken": self.taken,
            "twice": self.twice,
            "fresh": self.fresh,
        }


class Volumes:
    """A reading for each."""

    def __init__(self, count, longest, tokens, absent, share, wrong=""):
        self.wrong = wrong
        tokens = tokens // SEQ_LEN // count * SEQ_LEN
        absent *= 1 if wrong == "absence as without volumes" else count
        self.each = [Reading(longest, tokens, absent, share, wrong) for _ in range(count)]

    def volume(self, peer, phase):
        digest = hashlib.blake2b(peer.encode(), digest_size=8, person=b"data-volume").digest()
        first = 0 if self.wrong == "all sites begin with volume 0" else int.from_bytes(digest, "little")
        return (first + (phase if self.wrong == "a volume for each phase" else phase // 2)) % len(self.each)

    def extend(self, entry):
        for number, reading in enumerate(self.each):
            reading.extend([one for one in entry if self.volume(one[0], one[1]) == number])

    def told(self):
        asked = [(peer, phase) for peer, phase in ASKED] + [(peer, phase + 2) for peer, phase in ASKED]
        read = [
            {"peer": peer, "phase": phase, "samples": self.each[self.volume(peer, phase)].queue(peer, phase)}
            for peer, phase in asked
        ]
        sums = {name: sum(getattr(one, name) for one in self.each) for name in ("taken", "twice", "fresh")}
        return {"read": read} | sums


def play(run, history, wrong=""):
    reading = Volumes(VOLUMES[run], *RUNS[run], wrong) if run in VOLUMES else Reading(*RUNS[run], wrong)
    told = [json.loads(json.dumps(reading.told()))]
    for entry in HISTORIES[history]:
        # A contribution cannot claim more than the longest phase, which differs from run to run.
        reading.extend([(peer, phase, base, min(samples, RUNS[run][0])) for peer, phase, base, samples in entry])
        told.append(json.loads(json.dumps(reading.told())))
    return told


def row(run, history, told):
    longest, tokens, absent, share = RUNS[run]
    entries = [
        [
            {"peer": p, "phase": n, "base_round": base, "tokens": SEQ_LEN * min(samples, longest)}
            for p, n, base, samples in e
        ]
        for e in HISTORIES[history]
    ]
    rules = {"seq_len": SEQ_LEN, "longest": longest, "store_tokens": tokens, "absent_rounds": absent, "share": share}
    rules |= {"volumes": VOLUMES[run]} if run in VOLUMES else {}
    return {"run": run, "history": history, "rules": rules, "entries": entries, "told": told}


WRONG = (
    "all samples counted as shared",
    "shared samples rounded up",
    "what was given back is never read",
    "one queue for all phases",
    "old bases take samples",
    "nobody gives back",
)
WRONG_OF_VOLUMES = (
    "a volume for each phase",
    "all sites begin with volume 0",
    "absence as without volumes",
)


def main():
    names = [(run, history) for run in RUNS for history in (("two sites", "absence") if run in VOLUMES else HISTORIES)]
    good = [row(run, history, play(run, history)) for run, history in names]
    broken = []
    for wrong in (*WRONG, *WRONG_OF_VOLUMES):
        for (run, history), right in zip(names, good, strict=True):
            if (run in VOLUMES) != (wrong in WRONG_OF_VOLUMES):
                continue
            told = play(run, history, wrong)
            if told != right["told"]:
                broken.append({"broken": wrong} | row(run, history, told))
    json.dump({"chapter": "12", "histories": good, "broken_histories": broken}, sys.stdout, indent=0)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
