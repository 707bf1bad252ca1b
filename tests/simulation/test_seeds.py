"""Seeded and directed schedules on every test run; more with `python -m tests.simulation` (docs/simulation.md)."""

from collections.abc import Callable

import pytest

from tests.simulation.batches import run_many
from tests.simulation.liars import TRUST_KINDS
from tests.simulation.schedules.directed import SCENARIOS
from tests.simulation.schedules.seeded import Variant, run_seed

QUICK = 24
"""So many schedules are run by tests that are not slow."""
CI_SEEDS = (range(QUICK, 250), *(range(first, first + 250) for first in range(250, 2000, 250)))
"""With those, 2,000 schedules that have passed once; new seeds are for runs by hand, so that a find blocks nobody else.
In pieces that two processes of pytest share out: processes of their own would load torch and the daemon once more each.
"""
FAILED_ONCE = (
    *(60715, 70003, 70276, 70304, 1000190, 1000233, 1000469, 1000636, 2000515, 2000591, 2000860, 2001495),
    *(2002197, 2002665, 2004569, 2006050, 2007242, 2008843, 2010015, 2017292, 3000388, 3000572, 3001750, 3002596),
    *(3002673, 3003782, 3004211, 3005023, 3007885, 3007905, 3008348, 3015688, 3017834, 3019057, 3028289, 3103300),
    *(3205307, 4013066, 4015072, 4015365, 4025252, 4026028, 4028288, 4030186, 4039382, 4043199, 4065510, 4072474),
    *(4073194, 4084776, 4090204, 4092316, 4700007, 4702611, 500445, 501991, 503462, 503784, 505202, 509098),
    *(509441, 511960, 512332, 512676, 514202, 515100, 518781, 519611, 903305, 905507, 905650, 923090),
    *(963571, 970078, 964075, 967805, 967904, 982132, 984664, 987343, 988658, 1010847, 1011713, 1025396),
    *(
        1053054,
        1055671,
        1056864,
        1058899,
        1059256,
        1063034,
        1074808,
        1078406,
        1093811,
        1103414,
        1123016,
        1146029,
        1156858,
        1193300,
        1201261,
        1208646,
        1218371,
        1505123,
        1520246,
        1586032,
        1587515,
        1590423,
        1802821,
        5063173,
    ),
)
"""Schedules beyond those that found a fault (docs/simulation.md)."""
COALITIONS_FAILED_ONCE = (1400011,)
"""The same, where just under a third lie."""
ABUSED_BY_A_THIRD = Variant(abuses_trust=True, has_coalition=True)
TRUST_FAILED_ONCE = (
    (2100152, Variant(abuses_trust=True)),
    (5302301, ABUSED_BY_A_THIRD),
    (5303006, ABUSED_BY_A_THIRD),
    (6300606, ABUSED_BY_A_THIRD),
)
"""The same, where somebody abuses trust, or just under a third do."""
TRUST_SEEDS = dict.fromkeys(TRUST_KINDS, 2)
"""One schedule of each kind; more with `--trust`."""


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_what_failed_once_holds(seed: int) -> None:
    assert run_seed(seed).problem == ""


@pytest.mark.parametrize("seed", COALITIONS_FAILED_ONCE)
def test_coalition_that_failed_once_holds(seed: int) -> None:
    assert run_seed(seed, Variant(has_coalition=True)).problem == ""


@pytest.mark.parametrize(("seed", "variant"), TRUST_FAILED_ONCE)
def test_abuse_of_trust_that_failed_once_holds(seed: int, variant: Variant) -> None:
    assert run_seed(seed, variant).problem == ""


@pytest.mark.parametrize("first", range(0, QUICK, 6))
def test_invariants_hold_in_every_schedule(first: int) -> None:
    problems = [f"seed {o.seed}: {o.problem}" for seed in range(first, first + 6) if (o := run_seed(seed)).problem]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("first", range(0, 24, 6))
def test_invariants_hold_where_everybody_sums_for_itself(first: int) -> None:
    done = [run_seed(seed, Variant(is_gathered=True)) for seed in range(first, first + 6)]
    problems = [f"seed {outcome.seed}: {outcome.problem}" for outcome in done if outcome.problem]
    assert not problems, "\n".join(problems)
    assert sum(outcome.rounds for outcome in done) > len(done)


@pytest.mark.parametrize("first", range(0, 18, 6))
def test_invariants_hold_where_who_enters_is_on_probation(first: int) -> None:
    problems = [o for seed in range(first, first + 6) if (o := run_seed(seed, Variant(probation_rounds=3))).problem]
    assert not problems, "\n".join(f"seed {outcome.seed}: {outcome.problem}" for outcome in problems)


@pytest.mark.parametrize("first", (0, 3))
def test_invariants_hold_where_just_under_a_third_lie(first: int) -> None:
    done = [run_seed(seed, Variant(has_coalition=True)) for seed in range(first, first + 3)]
    problems = [f"seed {outcome.seed}: {outcome.problem}" for outcome in done if outcome.problem]
    assert not problems, "\n".join(problems)
    assert all(outcome.rounds for outcome in done)


@pytest.mark.parametrize("kind", TRUST_KINDS)
def test_invariants_hold_where_somebody_abuses_trust(kind: str) -> None:
    outcome = run_seed(TRUST_SEEDS[kind], Variant(abuses_trust=True, only_kind=kind))
    assert outcome.problem == ""
    assert outcome.rounds


def test_invariants_hold_where_a_coalition_abuses_trust() -> None:
    assert run_seed(2, Variant(abuses_trust=True, has_coalition=True)).problem == ""


@pytest.mark.parametrize("first", (0, 6))
def test_invariants_hold_where_who_dies_is_found_gone(first: int) -> None:
    problems = [o for seed in range(first, first + 6) if (o := run_seed(seed, Variant(tells_gone=True))).problem]
    assert not problems, "\n".join(f"seed {outcome.seed}: {outcome.problem}" for outcome in problems)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("first", range(0, QUICK, 12))
def test_nobody_leaves_a_final_entry_unless_told(first: int, depth: int) -> None:
    done = [run_seed(seed, Variant(final_depth=depth)) for seed in range(first, first + 12)]
    problems = [f"seed {outcome.seed}: {outcome.problem}" for outcome in done if outcome.problem]
    assert not problems, "\n".join(problems)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("depth", "first"), [(1, QUICK), (4, 0)])
def test_nobody_leaves_a_final_entry_in_many_schedules(depth: int, first: int) -> None:
    failed, _ = run_many(first, 150 - first, Variant(final_depth=depth))
    assert not failed, "\n".join(f"seed {outcome.seed}: {outcome.problem}" for outcome in failed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", CI_SEEDS, ids=str)
def test_invariants_hold_in_many_schedules(seeds: range) -> None:
    failed, done = run_many(seeds.start, len(seeds))
    assert len(done) == len(seeds)
    assert not failed, "\n".join(f"seed {outcome.seed}: {outcome.problem}" for outcome in failed)


def test_same_seed_gives_the_same_history() -> None:
    assert run_seed(3, keeps_transcript=True) == run_seed(3, keeps_transcript=True)


def test_a_schedule_asked_for_its_liar_is_the_same_or_passed_over() -> None:
    plain = [run_seed(seed, keeps_transcript=True) for seed in range(3, 9)]
    asked = [run_seed(seed, Variant(needs_liar=True), keeps_transcript=True) for seed in range(3, 9)]
    kept = [seed for seed, outcome in enumerate(asked) if not outcome.is_passed_over]
    assert 0 < len(kept) < len(asked)
    assert [asked[at] for at in kept] == [plain[at] for at in kept]
    failed, done = run_many(3, 6, Variant(needs_liar=True))
    assert not failed
    assert [outcome.seed for outcome in done] == [asked[at].seed for at in kept]


def test_same_seed_gives_the_same_outcome_in_another_process() -> None:
    assert run_many(3, 1, jobs=2) == run_many(3, 1)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_invariants_hold_in_directed_schedules(scenario: Callable[[], str]) -> None:
    assert scenario() == ""
