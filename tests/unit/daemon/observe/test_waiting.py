"""What a site waits for, as words behind `waits for`, and how far that is."""

import pytest

from dilocoxd.answers.members import Member
from dilocoxd.daemon.observe.status import MAJORITY, site_wait, with_evicted
from dilocoxd.daemon.site.interface import SiteStatus
from dilocoxd.daemon.site.progress import SiteProgress
from dilocoxd.ids import PeerId, PhaseId, RoundIndex
from dilocoxd.machines.round.grouping import missing_majority
from dilocoxd.wire.local import trainer as local_trainer
from dilocoxd.wire.local.worker import WorkerAlive


def site(waiting_for: str, doing: str) -> SiteStatus:
    return SiteStatus(
        waiting_for, False, None, 0, 0, 0, None, 0.0, 0.0, 0.0, 0, None, None, None, None, {}, doing=doing
    )


@pytest.mark.parametrize(
    ("alive", "said"),
    [
        (WorkerAlive(doing="data: tokenised 64 of 502 chunks", per_mille=0), "data: tokenised 64 of 502 chunks"),
        (WorkerAlive(doing="evaluate", per_mille=425), "evaluate 42 %"),
    ],
)
def test_long_work_of_the_trainers_is_told_with_how_far_it_is(alive: WorkerAlive, said: str) -> None:
    progress = SiteProgress()
    progress.take(alive)
    assert site_wait(site("the trainers to start", progress.doing)) == f"the trainers to start ({said})"
    progress.take(local_trainer.Evaluated(RoundIndex(0), 3.0, 1.0))
    assert progress.doing == ""


def test_what_is_busy_without_being_waited_for_is_not_told() -> None:
    assert site_wait(site("", "evaluate 42 %")) == ""
    assert site_wait(site("the validation loss", "")) == "the validation loss"


def test_a_phase_keeps_no_old_work() -> None:
    progress = SiteProgress(doing="data: reading")
    progress.take(local_trainer.StepDone(PhaseId(1), 1, 1, 3.0, 64, 0.1, 0.0))
    assert progress.doing == ""


def member(peer: str, state: str) -> Member:
    return Member(peer_id=peer, name=peer, state=state, serial="1", role="", uses=None, invite_expires_unix=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("evicted", "said"),
    [
        ("", ""),
        ("x", ""),
        ("d", "; 1 of them is evicted and still counts (d)"),
        ("cd", "; 2 are evicted and still count (c, d), so no majority can come: go on in a new run,"
               " `dilocoxd start --from RUN_DIR`"),
    ],
)  # fmt: skip
def test_those_who_cannot_come_back_are_named_where_a_majority_is_missing(evicted: str, said: str) -> None:
    electorate = frozenset(map(PeerId, "abcd"))
    text = missing_majority({PeerId("a")}, electorate)
    assert text.startswith(MAJORITY)
    members = [*(member(peer, "member") for peer in "ab"), *(member(peer, "evicted") for peer in evicted)]
    assert with_evicted(text, electorate, members) == text + said


def test_who_was_invited_again_can_come_back() -> None:
    members = [member("c", "member"), member("c", "evicted")]
    assert with_evicted(MAJORITY, frozenset(map(PeerId, "abc")), members) == MAJORITY
