"""The recovery machine by table and by chance: which way it takes, and that it ends well whatever the sources do."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings, strategies as st

from dilocoxd.ids import Monotonic
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.branch import Branch, is_better
from dilocoxd.machines.round.outputs import InFlight
from dilocoxd.wire.entry import SignedEntry
from tests.unit.machines.recovery.recovery_world import NUM_CHUNKS, Donor, World, grown

COMMON = grown([], 4, b"common")
AHEAD_1 = grown(COMMON, 1, b"x")
AHEAD_3 = grown(COMMON, 3, b"x")
FAR = grown(COMMON, 20, b"x")
FORK = grown(COMMON[:2], 4, b"fork", tokens=100)
FAR_FORK = grown(COMMON[:2], 20, b"fork", tokens=100)
LIGHT_FORK = grown(COMMON[:2], 1, b"fork")
FALSE_AT_ONCE = grown(COMMON[:2], 4, b"fork", tokens=15, lies_at=2)
FALSE_LATER = grown(COMMON[:2], 4, b"fork", tokens=15, lies_at=3)
FALSE_BUT_BETTER = grown(COMMON[:2], 4, b"fork", tokens=100, lies_at=4)

ENTRY = ["fetching_payload", "applying"]
RESTORED = ["fetching_payload", "restoring"]
SNAPSHOT = ["choosing", "fetching_chunks", "adopting"]
COMPARED = ["comparing", "weighing"]


@dataclass(frozen=True)
class Row:
    """One line of the table: who stands where, the states that follow, the log at the end."""

    name: str
    donors: dict[str, Donor]
    states: list[str]
    log: list[SignedEntry]
    failure: str = ""
    can_replay: bool = True
    num_missing: int = 0
    refuses_rebuild: bool = False
    is_rebuild: bool = False


TABLE = [
    Row("nothing new", {"D": Donor(COMMON)}, ["comparing", "done"], COMMON),
    Row("one entry behind", {"D": Donor(AHEAD_1)}, [*COMPARED, *ENTRY, "done"], AHEAD_1),
    Row("three entries behind", {"D": Donor(AHEAD_3)}, [*COMPARED, *ENTRY * 3, "done"], AHEAD_3),
    Row(
        "far behind, with a snapshot", {"D": Donor(FAR, 20, (4, 22))},
        [*COMPARED, *SNAPSHOT, *ENTRY * 2, "done"], FAR,
    ),
    Row("far behind, nobody has a snapshot", {"D": Donor(FAR)}, [*COMPARED, "choosing", *ENTRY * 20, "done"], FAR),
    Row("heavier fork", {"D": Donor(FORK)}, [*COMPARED, "leaving", "rebuilding", *ENTRY * 4, "done"], FORK),
    Row("lighter fork", {"D": Donor(LIGHT_FORK)}, [*COMPARED, "done"], COMMON),
    Row(
        "fork below what our disk can rebuild", {"D": Donor(FAR_FORK, 20, (20,))},
        [*COMPARED, "choosing", "fetching_chunks", "leaving", "adopting", *ENTRY * 2, "done"], FAR_FORK,
        can_replay=False,
    ),
    Row(
        "fork below what our disk can rebuild, whose state another one has", {"D": Donor(FORK, 2, (2,))},
        [*COMPARED, "choosing", "fetching_chunks", "leaving", "adopting", *ENTRY * 4, "done"], FORK,
        can_replay=False,
    ),
    Row(
        "fork that can neither be rebuilt nor skipped", {"D": Donor(FORK)},
        [*COMPARED, "choosing", "done"], COMMON, "nobody offers a snapshot", can_replay=False,
    ),
    Row(
        "fork below what our disk can rebuild, but for two payloads", {"D": Donor(FORK)},
        [*COMPARED, "choosing", *RESTORED * 2, "leaving", "rebuilding", *ENTRY * 4, "done"], FORK,
        can_replay=False, num_missing=2,
    ),
    Row(
        "fork below what our disk can rebuild, but for payloads that nobody has", {"D": Donor(FORK, 1)},
        [*COMPARED, "choosing", "fetching_payload", "done"], COMMON, "or the payload of entry 0: D: not_found",
        can_replay=False, num_missing=2,
    ),
    Row(
        "fork below which payloads of others lead nowhere", {"D": Donor(FORK)},
        [*COMPARED, "choosing", *RESTORED * 2, "leaving", "rebuilding", "choosing", "turning_back", "done"], COMMON,
        "cannot be made from our disk (another state)", can_replay=False, num_missing=2, refuses_rebuild=True,
    ),
    Row(
        "fork below which payloads lead nowhere, and a snapshot of the state there", {"D": Donor(FORK, 0, (2,))},
        [*COMPARED, "leaving", "rebuilding", *SNAPSHOT, *ENTRY * 4, "done"], FORK, refuses_rebuild=True,
    ),
    Row(
        "payload that nobody has", {"D": Donor(AHEAD_3, 6)},
        [*COMPARED, "fetching_payload", "choosing", "done"], COMMON, "payload of entry 4",
    ),
    Row(
        "payload that nobody has, a snapshot behind it", {"D": Donor(AHEAD_3, 6, (6,))},
        [*COMPARED, "fetching_payload", *SNAPSHOT, *ENTRY, "done"], AHEAD_3,
    ),
    Row(
        "payload that only another has", {"D": Donor(AHEAD_1, 9), "E": Donor(AHEAD_1)},
        [*COMPARED, *ENTRY, "done"], AHEAD_1,
    ),
    Row(
        "branch on a false state", {"D": Donor(FALSE_AT_ONCE)},
        [*COMPARED, "leaving", "rebuilding", "turning_back", "done"], COMMON, "another state",
    ),
    Row(
        "branch that turns out to be false", {"D": Donor(FALSE_LATER)},
        [*COMPARED, "leaving", "rebuilding", *ENTRY, "turning_back", "done"], COMMON, "another state",
    ),
    Row(
        "the true part of a false branch is better", {"D": Donor(FALSE_BUT_BETTER)},
        [*COMPARED, "leaving", "rebuilding", *ENTRY * 2, "turning_back", "done"], FALSE_BUT_BETTER[:4],
    ),
    Row("our bits are wrong", {"D": Donor(COMMON)}, ["rebuilding", "comparing", "done"], COMMON, is_rebuild=True),
    Row(
        "silent peers", {"D": Donor(FAR, is_silent=True), "E": Donor(FAR, is_silent=True)},
        ["comparing", "done"], COMMON, "no answer about its entries",
    ),
    Row(
        "the first is silent", {"D": Donor(FAR, is_silent=True), "E": Donor(AHEAD_1)},
        [*COMPARED, *ENTRY, "done"], AHEAD_1,
    ),
    Row("nobody to ask", {}, ["done"], COMMON, "no peer to ask"),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_states_of_the_table(row: Row) -> None:
    world = World(
        COMMON, row.donors, can_replay=row.can_replay, num_missing=row.num_missing, is_rebuild=row.is_rebuild,
        refuses_rebuild=row.refuses_rebuild,
    )  # fmt: skip
    done = world.run()
    assert world.states == row.states
    assert world.log == row.log and world.digest == world.digest_of(row.log) and not world.aside
    assert row.failure in done.failure and bool(row.failure) == bool(done.failure)


def test_chunks_come_from_all_who_have_them_and_a_liar_is_named() -> None:
    donors = {name: Donor(FAR, 20, (22,)) for name in "DEF"}
    donors["E"].lies_about_chunks = True
    world = World(COMMON, donors)
    assert not world.run().failure
    assert {question.peer for question in world.questions(r.AskChunk)} == {"D", "E", "F"}
    (dropped,) = world.ordered(r.SourceDropped)
    assert isinstance(dropped, r.SourceDropped) and dropped.peer == "E"
    num_asked = len([question for question in world.questions(r.AskChunk) if question.peer == "E"])
    assert num_asked == world.limits.window, "who gave a wrong chunk is not asked again"
    assert any("E: wrong hash" in text for text in world.machine.status.problems)


def test_who_made_up_a_snapshot_is_named_and_left_however_many_they_are() -> None:
    """TRUST H4: what most sources describe alike is taken, and two of three have made it up."""
    donors = {name: Donor(FAR, 20, (22,), makes_up_snapshots=name != "F") for name in "DEF"}
    world = World(COMMON, donors)
    done = world.run()
    assert world.log == FAR and not done.failure
    dropped = [order.peer for order in world.ordered(r.SourceDropped) if isinstance(order, r.SourceDropped)]
    assert dropped == ["D", "E"]
    assert len(world.ordered(r.AdoptSnapshot)) == 2, "it is downloaded once"
    assert set(done.unconfirmed) <= {"D", "E"}
    assert {text[:2] for text in world.machine.status.problems} <= {"D:", "E:"}


def test_download_that_was_cut_off_goes_on_with_the_missing_chunks() -> None:
    world = World(COMMON, {"D": Donor(FAR, 20, (22,))}, present=frozenset({0, 1, 2, 5}))
    assert not world.run().failure
    assert {q.number for q in world.questions(r.AskChunk) if isinstance(q, r.AskChunk)} == {3, 4, 6}


def test_source_that_falls_silent_in_the_middle_delays_only_its_own_chunks() -> None:
    donors = {name: Donor(FAR, 20, (22,)) for name in "DE"}
    world = World(COMMON, donors)
    world.twist = lambda question, answer: (
        None if isinstance(question, r.AskChunk) and question.peer == "D" and question.number > 0 else answer
    )
    started = world.now
    assert not world.run().failure
    assert world.now - started < 5.0, "nobody waited for the silent one's deadline"
    assert [peer for peer, _ in world.machine.status.late] == ["D"], "it is named"
    assert {q.number for q in world.questions(r.AskChunk) if q.peer == "E"} >= set(range(1, NUM_CHUNKS))  # type: ignore[union-attr]


def test_source_that_gives_no_list_is_named_and_nobody_who_refuses() -> None:
    donors = {name: Donor(FAR, 20, (22,)) for name in "DEF"}
    world = World(COMMON, donors)

    def twist(question: r.Ask, answer: r.Answer) -> r.Answer | None:
        is_list = isinstance(question, r.AskSnapshots)
        if is_list and question.peer == "F":
            return r.AskFailed(question.request, "not_found", is_final=True)
        return None if is_list and question.peer == "E" else answer

    world.twist = twist
    assert not world.run().failure
    ((peer, reason),) = world.machine.status.late
    assert peer == "E" and "its list of snapshots" in reason


def test_every_wait_says_for_whom_and_until_when() -> None:
    world = World(COMMON, {"D": Donor(FAR, is_silent=True)})
    world._carry_out(world.machine.start(now=world.now))
    status = world.machine.status
    assert status.state == "comparing" and status.sources == ("D",) and "the chain of D" in status.waiting_for
    assert status.deadline is not None and status.patience_s is not None
    assert status.deadline == world.now + status.patience_s


@pytest.mark.parametrize("index", [10, 22])
def test_contribution_in_flight_is_settled_once_by_whatever_brings_its_entry(index: int) -> None:
    ours = FAR[index].entry.contributions[0]
    flying = InFlight(ours, None, ())
    world = World(COMMON, {"D": Donor(FAR, 20, (22,))}, in_flight=flying)
    done = world.run()
    assert done.settled == ours.phase
    steps = [*world.ordered(r.AdoptSnapshot), *world.ordered(r.TakeEntry)]
    settled = [step.settle for step in steps if isinstance(step, r.AdoptSnapshot | r.TakeEntry) and step.settle]
    assert [settle.phase for settle in settled] == [ours.phase]
    num_before = 1 if index == 10 else 2
    assert all(getattr(step, "in_flight") is None for step in steps[num_before:]), "it flies no more"  # noqa: B009


def test_failure_says_whose_branch_is_false_and_whose_broke_off() -> None:
    false, silent = Donor(FALSE_AT_ONCE), Donor(FAR, is_silent=True)
    done = World(COMMON, {"D": false, "E": silent}).run()
    assert done.failure and done.unconfirmed == ("D",) and done.unavailable == ("E",)
    done = World(COMMON, {"D": Donor(AHEAD_3, 6)}).run()
    assert done.failure and done.unconfirmed == () and done.unavailable == ("D",), "honest peers drop payloads too"
    world = World(COMMON, {"D": Donor(AHEAD_3)})
    world.twist = lambda question, answer: None if isinstance(question, r.AskPayload) else answer
    done = world.run()
    assert done.failure and done.unconfirmed == () and done.unavailable == ("D",)


def test_whose_branch_came_in_part_is_told_apart_from_whose_gave_nothing() -> None:
    """R22.2: the first one may be asked again and again, the other one is given up after a few times."""
    silent = Donor(FAR, is_silent=True)
    world = World(COMMON, {"D": silent, "E": Donor(AHEAD_3)})
    world.twist = lambda ask, answer: (
        r.AskFailed(ask.request, "not_found", is_final=True)
        if isinstance(ask, r.AskPayload) and ask.signed.entry.round > len(COMMON)
        else answer
    )
    done = world.run()
    assert not done.failure and done.unavailable == ("D", "E") and done.in_part == "E"
    done = World(COMMON, {"D": silent, "E": Donor(AHEAD_1)}).run()
    assert done.unavailable == ("D",) and done.in_part is None, "E moved us, D gave nothing"


def test_late_and_doubled_answers_change_nothing() -> None:
    world = World(COMMON, {"D": Donor(AHEAD_1)})
    done = world.run()
    for event in (r.EntriesCame(1, tuple(FAR)), r.PayloadCame(2), r.Rebuilt(world.digest_of([])), r.Tick()):
        assert world.machine.handle(event, now=world.now) == []
    assert world.done is done


def refused_by(*peers: str) -> Callable[[r.Ask, r.Answer], r.Answer]:
    """They list a snapshot and describe it, and give no chunk of it."""

    def twist(question: r.Ask, answer: r.Answer) -> r.Answer:
        is_refused = isinstance(question, r.AskChunk) and question.peer in peers
        return r.AskFailed(question.request, "not_found", is_final=True) if is_refused else answer

    return twist


def test_newest_snapshot_that_nobody_gives_leads_to_an_older_one() -> None:
    """Who lists it and gives no chunk would keep out for ever who needs a snapshot."""
    world = World(COMMON, {"D": Donor(FAR, 20, (22,)), "E": Donor(FAR, 20, (21,))}, twist=refused_by("D"))
    done = world.run()
    assert not done.failure and world.log == FAR
    assert world.states == [*COMPARED, "choosing", "fetching_chunks", *SNAPSHOT, *ENTRY * 3, "done"]
    assert len(world.ordered(r.CloseDownload)) == 1
    assert not world.machine.status.problems, "nothing is proved against it"


def test_snapshot_that_one_describes_and_gives_not_comes_from_who_describes_it_otherwise() -> None:
    donors = {"D": Donor(FAR, 20, (22,), makes_up_snapshots=True), "E": Donor(FAR, 20, (22,))}
    world = World(COMMON, donors, twist=refused_by("D"))
    assert not world.run().failure and world.log == FAR


def test_snapshot_that_nobody_gives_keeps_us_from_no_entries() -> None:
    world = World(COMMON, {"D": Donor(FAR, 0, (22,)), "E": Donor(FAR)}, twist=refused_by("D"))
    assert not world.run().failure and world.log == FAR
    assert len(world.questions(r.AskPayload)) == 20, "a chunk that is refused later is no refused payload"
    world = World(COMMON, {"D": Donor(FORK, 0, (4,)), "E": Donor(FORK)}, twist=refused_by("D"), can_replay=False)
    world.num_missing = 2
    assert not world.run().failure and world.log == FORK


def test_snapshots_that_nobody_gives_are_told() -> None:
    world = World(COMMON, {"D": Donor(FAR, 20, (22,)), "E": Donor(FAR, 20, (21,))}, twist=refused_by("D", "E"))
    done = world.run()
    assert "snapshot 22: " in done.failure and "snapshot 21: " in done.failure and world.log == COMMON


BRANCHES = (COMMON, AHEAD_1, AHEAD_3, FAR, FORK, FAR_FORK, LIGHT_FORK, FALSE_AT_ONCE, FALSE_LATER, FALSE_BUT_BETTER, [])


@st.composite
def donors(draw: st.DrawFn) -> Donor:
    log = draw(st.sampled_from(BRANCHES))
    snapshots = tuple(draw(st.lists(st.integers(0, 25), max_size=3, unique=True)))
    return Donor(
        log, draw(st.integers(0, 25)), snapshots, draw(st.booleans()) and draw(st.booleans()), draw(st.booleans())
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(donors(), max_size=4), st.integers(0, 10**6), st.booleans(), st.floats(0.0, 0.6))
def test_whatever_the_sources_do_it_ends_on_our_branch_or_a_better_one(
    found: list[Donor], seed: int, can_replay: bool, trouble: float
) -> None:
    rng = random.Random(seed)

    def twist(question: r.Ask, answer: r.Answer) -> r.Answer | None:
        if rng.random() >= trouble:
            return answer
        return rng.choice([None, r.AskFailed(question.request, "broke"), r.AskFailed(question.request, "no", True)])

    world = World(
        COMMON, dict(zip("DEFG", found, strict=False)), can_replay=can_replay, num_missing=seed % 3, twist=twist,
        refuses_rebuild=seed % 4 == 0,
    )  # fmt: skip
    world.latency_s = lambda question: rng.uniform(0.0, 3.0)
    started = world.now
    done = world.run()
    assert world.now - started < 40 * r.RecoveryLimits().patience_s(8 << 20), "every wait has a deadline"
    assert not world.aside and world.digest == world.digest_of(world.log)
    fork = next((i for i, pair in enumerate(zip(COMMON, world.log, strict=False)) if pair[0] != pair[1]), len(COMMON))
    own = [signed.entry for signed in COMMON[fork:]]
    if world.log != COMMON:
        assert not done.failure and is_better(Branch(fork, tuple(world.log[fork:])), own)
    liars = {order.peer for order in world.ordered(r.SourceDropped) if isinstance(order, r.SourceDropped)}
    assert liars <= {name for name, donor in world.donors.items() if donor.lies_about_chunks}


def test_good_source_is_enough() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        bad = [
            Donor(rng.choice(BRANCHES), 30, (22,), rng.random() < 0.3, rng.random() < 0.5, makes_up_snapshots=True)
            for _ in range(3)
        ]
        world = World(COMMON, {**dict(zip("ABC", bad, strict=True)), "D": Donor(FAR_FORK, 10, (12, 20))})
        world.run()
        assert world.log != COMMON, f"seed {seed}: {world.machine.status.problems}"


def test_r18_nobody_has_failed_us_while_we_stood_still() -> None:
    world = World(COMMON, {"D": Donor(AHEAD_1)})
    machine = world.machine
    (question,) = machine.start(now=world.now)
    deadline = machine.next_deadline()
    assert isinstance(question, r.AskEntries) and deadline is not None
    still_s = 500.0
    awake = Monotonic(deadline + still_s)
    assert machine.handle(r.Tick(), now=awake) == [], "its answer may be here, unread"
    after = machine.next_deadline()
    assert after is not None and awake < after < awake + 5.0
    assert any(isinstance(effect, r.Cancel) for effect in machine.handle(r.Tick(), now=after)), "but it has an end"
