"""The owner of a segment returns another sum: found by summing again, named with its evidence; nobody honest ever is.
X13, TRUST C3."""

import hashlib
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dilocoxd.machines.admission.eviction import WINDOW_ENTRIES
from dilocoxd.machines.audit.verdict import Summed, judge
from dilocoxd.store.audits import evidence_directory, read_case, share_name
from dilocoxd.wire.entry import Entry, entry_hash
from tests.adversary.daemon import patched
from tests.adversary.judge import assert_rounds_go_on, assert_same_bits
from tests.harness.running.openings import founder, pair
from tests.harness.running.run_directories import OPEN, found_run, join_run, resting
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of
from tests.harness.running.training import PATIENCE_S, founder_options, log_of, site_options, wait_joint_round
from tests.harness.synthetic.fake_site import LENGTHS

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

NUMBERS = ("--set", "strategy.codec=fp32", "--set", "strategy.segment_elements_max=8192")
"""Numbers that a patch can multiply, in so many segments that the liar owns one whatever speed is measured of it."""
HONEST_ROUNDS = 20


def audited(verify: str, fraction: float = 1.0) -> list[str]:
    settings = {
        "reduction.verify": verify,
        "reduction.verify_fraction": str(fraction),
        "reduction.owner_feedback": "none",
        "strategy.transform": "identity",
    }
    return [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]


def accused(site: SiteProcess) -> str:
    """Text of the standing alert; empty if nobody is accused."""
    return next((str(one["text"]) for one in site.status().get("alerts", ()) if one["code"] == "false_result"), "")


def audits(site: SiteProcess) -> dict[str, int]:
    return dict(site.status().get("audits") or {})


def wait_audits(site: SiteProcess, kind: str, number: int = 1) -> None:
    """Until so many of this kind are counted: what an audit found is told at once, and counted when all its segments
    are done."""
    wait_until(lambda: audits(site).get(kind, 0) >= number, f"audits: {kind}", PATIENCE_S, site.describe)


def name_of(entry: Entry) -> str:
    """As events name it."""
    return entry_hash(entry).hex()[:16]


def who(site: SiteProcess) -> str:
    return str(wait_until(lambda: site.status().get("peer_id"), "a peer id", PATIENCE_S, site.describe))


def wait_accused(honest: SiteProcess, liar: str) -> None:
    wait_until(
        lambda: liar in accused(honest) or liar[-6:] in accused(honest),
        "the liar's name",
        PATIENCE_S,
        honest.describe,
    )


def pair_with_liar(folder: Path, verify: str) -> AbstractContextManager[tuple[SiteProcess, SiteProcess]]:
    """An honest founder, and a second site that lies in its sums."""

    def lie(site: SiteProcess) -> None:
        patched(site, "lie_sums", phase_s=0.5)

    return pair(folder, PATIENCE_S, *OPEN, *audited(verify), phase_s=0.5, start_second=lie)


def test_liar_of_two_is_named_and_its_evidence_proves_it(tmp_path: Path) -> None:
    with pair_with_liar(tmp_path, "after") as (a, b):
        liar, honest = who(b), who(a)
        wait_accused(a, liar)
        assert_rounds_go_on(a, 2, PATIENCE_S)
        wait_audits(a, "proofs")
        wait_audits(b, "made")
        assert honest not in accused(b), "the liar's own audits are sound, and it is shown what it did itself"
        assert [site.stop() for site in (b, a)] == [0, 0]
    folders = sorted(evidence_directory(a.run_dir).iterdir())
    assert folders
    left = taken_back(a)  # not before it has stopped: it lies on, and entries of the last moment are taken back too
    chain = {name_of(signed.entry) for signed in log_of(a).entries()}
    for folder in folders:
        case = read_case(folder)
        assert case.owner == liar
        assert name_of(case.entry) in left | chain, "an entry leaves the chain with an event that names it"
        assert not case.unproved(len(LENGTHS)), "each share is under its signed root"
        again = sum_of_bytes(folder, len(case.proofs))
        assert judge(case, len(LENGTHS), [share.sha256 for share in case.proofs], [again] * 2).verdict == "false"


def sum_of_bytes(folder: Path, number: int) -> Summed:
    """The fake site's arithmetic, by somebody who has the folder alone."""
    case = read_case(folder)
    total = bytearray(LENGTHS[case.segment])
    for place in range(number):
        for index, value in enumerate((folder / share_name(place)).read_bytes()):
            total[index] = (total[index] + value * case.entry.contributions[place].tokens) % 256
    return Summed(hashlib.sha256(total).digest())


def test_before_votes_a_false_sum_never_enters_the_chain(tmp_path: Path) -> None:
    with pair_with_liar(tmp_path, "before_vote") as (a, b):
        liar = who(b)
        wait_accused(a, liar)
        assert_rounds_go_on(a, 2, PATIENCE_S)
        assert [site.stop() for site in (b, a)] == [0, 0]
    false = {read_case(folder).entry for folder in evidence_directory(a.run_dir).iterdir()}
    assert false
    chain = {signed.entry for signed in log_of(a).entries()}
    assert not false & chain, "no entry was committed with a sum that was found false"


@pytest.mark.parametrize("verify", ["after", "before_vote"])
def test_honest_sites_accuse_nobody(tmp_path: Path, verify: str) -> None:
    with founder(tmp_path, PATIENCE_S, *OPEN, *audited(verify), phase_s=0.3) as a:
        with resting(a):
            others = [join_run(tmp_path, name, a) for name in "bc"]
        with sites(*others):
            for site in others:
                site.start_without_model(0.3)
            everybody = [a, *others]
            wait_joint_round(everybody)
            assert_rounds_go_on(a, HONEST_ROUNDS, 2 * PATIENCE_S)
            for site in everybody:
                wait_audits(site, "made", 3)
            assert [site.state()["audits"]["proofs"] for site in everybody] == [0, 0, 0]
            assert not any(accused(site) for site in everybody)
            assert_same_bits(*everybody)


def taken_back(site: SiteProcess) -> set[str]:
    """Names of the entries that left its chain because one of them was taken back."""
    events = events_of(site, "entry.taken_back")
    return {name for event in events for name in (event["entry"], *event["followers"])}


def state_of(site: SiteProcess, peer: str) -> str:
    """Of this member, as the site sees it."""
    return next((str(one["state"]) for one in site.get("/v1/members") or () if one["peer_id"] == peer), "")


def wait_electors(site: SiteProcess, ids: set[str]) -> None:
    """Until each of them has a third of the newest entries: who has less than a quarter of them has no vote on who is
    evicted (M7), and the founder has made some alone, the more the longer the others took to join."""

    def are_electors() -> bool:
        rows = site.rounds()[-WINDOW_ENTRIES:]
        times = Counter(named["peer"] for row in rows for named in row["contributors"])
        return bool(rows) and all(3 * times[peer] >= len(rows) for peer in ids)

    wait_until(are_electors, "a part of each site in a third of the entries", PATIENCE_S, site.describe)


def test_false_result_is_taken_back_everywhere_and_its_owner_is_evicted(tmp_path: Path) -> None:
    """Each site draws a third of the segments, so that some find it themselves and all others are shown it."""
    with founder(tmp_path, PATIENCE_S, *audited("after", 0.34), phase_s=0.5) as a:
        with resting(a):
            honest = [a, *(join_run(tmp_path, name, a) for name in "bc")]
            liar = join_run(tmp_path, "liar", a)
        with sites(*honest[1:], liar):
            with resting(a):
                for site in (*honest[1:], liar):
                    site.start_without_model(0.5)
                name, ids = who(liar), {who(site) for site in honest}
            wait_electors(a, {name, *ids})
            assert liar.stop() == 0  # it was honest, so it has a part in what it can be judged by
            patched(liar, "lie_sums", phase_s=0.5)
            for site in honest:
                wait_accused(site, name)
                assert not any(peer in accused(site) for peer in ids)
                wait_until(lambda at=site: taken_back(at), "the entry to be left", PATIENCE_S, site.describe)
                wait_until(
                    lambda at=site: state_of(at, name) == "evicted", "the liar to be out", PATIENCE_S, site.describe
                )
            assert_rounds_go_on(a, 3, PATIENCE_S)
            assert_same_bits(*honest, timeout_s=PATIENCE_S)
            left = set.union(*map(taken_back, honest))
            assert [site.stop() for site in reversed(honest)] == [0, 0, 0]
    for site in honest:
        assert not left & {name_of(signed.entry) for signed in log_of(site).entries()}


@pytest.mark.slow
@pytest.mark.remedy("alert:false_result")
def test_minus_twenty_times_the_mean_in_one_segment_is_named_by_honest_sites(tmp_path: Path) -> None:
    """Real workers: three honest sites, a liar that owns some of the segments and lies in one. What it did to the model
    is undone, to the bit."""
    a = found_run(tmp_path, "a", *founder_options(tmp_path, inner_steps=7), *NUMBERS, *audited("after", 0.5))
    with sites(a):
        a.start()
        a.wait_height(1, PATIENCE_S)
        honest = [a, *(join_run(tmp_path, name, a, *site_options(tmp_path)) for name in "bc")]
        liar = join_run(tmp_path, "liar", a, *site_options(tmp_path))
        with sites(*honest[1:], liar):
            for site in honest[1:]:
                site.start()
            wait_joint_round(honest)
            patched(liar, "lie_sums", phase_s=None)
            name = who(liar)
            for site in honest:
                wait_accused(site, name)
                wait_until(lambda at=site: taken_back(at), "the entry to be left", PATIENCE_S, site.describe)
            ids = {who(site) for site in honest}
            assert not any(peer in accused(site) for site in honest for peer in ids)
            assert_rounds_go_on(a, 2, PATIENCE_S)
            assert_same_bits(*honest, timeout_s=PATIENCE_S)
