"""Error feedback on disk: restored only when nothing of it can be in the chain already, and before training."""

from collections import Counter

import pytest

from dilocoxd.ids import PhaseId
from dilocoxd.machines.phase.repayment import work_needed
from dilocoxd.machines.phase.settings import CountedIn, PhaseSettings, SavedFeedback, SiteRecord
from dilocoxd.wire.local import outer_worker as local, trainer as local_trainer
from tests.unit.machines.phase.site_model import SiteModel


def saved(at: int, in_flight: int | None = None) -> SavedFeedback:
    """Feedback saved when phase `at` was the last that was settled."""
    return SavedFeedback(PhaseId(at), PhaseId(in_flight) if in_flight is not None else None, {})


def at_start(
    file: SavedFeedback | None,
    chain: tuple[int, ...],
    kept: tuple[int, ...],
    newest: CountedIn | None = None,
    unreadable: tuple[int, ...] = (),
) -> SiteModel:
    site = SiteModel(PhaseSettings("phase", 4, 2, 0, own_work_directory="work"), record=SiteRecord(6, PhaseId(3)))
    site.saved = file
    site.contents = {phase: site.feedback + type(site.feedback)([phase]) for phase in range(9)}
    site.start_outer()
    site.load(0)
    site.settle_down()
    site.start_trainer()
    site.settle_down()
    assert site.machine.waiting_for == "the run to be caught up with, before training starts"
    site.begin(chain, kept, newest, unreadable)
    return site


@pytest.mark.parametrize(
    ("file", "chain", "kept", "restored"),
    [
        (None, (), (), None),
        (saved(3), (3,), (3,), 3),
        (saved(3), (2,), (), 3),
        (saved(3), (3, 4), (4,), None),
        (saved(3), (3,), (4,), None),
        (saved(3, in_flight=4), (3, 4), (4,), 4),
        (saved(3, in_flight=4), (3,), (4,), 3),
        (saved(3, in_flight=4), (3,), (), 3),
        (saved(3, in_flight=4), (3, 4, 5), (5,), None),
        (saved(3, in_flight=4), (3, 4), (4, 5), None),
        (saved(3, in_flight=4), (3,), (4, 5), None),
    ],
)
def test_feedback_on_disk_is_used_only_if_nothing_can_be_counted_twice(
    file: SavedFeedback | None, chain: tuple[int, ...], kept: tuple[int, ...], restored: int | None
) -> None:
    site = at_start(file, chain, kept)
    request = site.outer_task and site.outer_task.request
    assert (request.phase if isinstance(request, local.RestoreSite) else None) == restored


@pytest.mark.parametrize(
    ("file", "chain", "unreadable", "restored"),
    [
        (saved(3), (3,), (4,), None),
        (saved(3, in_flight=4), (3,), (4,), None),
        (saved(3, in_flight=4), (3, 4), (4,), 4),
        (saved(3), (3,), (2, 3), 3),
        (saved(3), (), (3,), 3),
    ],
)
def test_a_vote_whose_kept_work_cannot_be_read_still_counts(
    file: SavedFeedback, chain: tuple[int, ...], unreadable: tuple[int, ...], restored: int | None
) -> None:
    """After an update, or damaged: its entry may be finished, with what the file holds, and nothing could say so."""
    site = at_start(file, chain, (), None, unreadable)
    request = site.outer_task and site.outer_task.request
    assert (request.phase if isinstance(request, local.RestoreSite) else None) == restored


KEPT = CountedIn(PhaseId(4), is_kept=True)
IN_LOG = CountedIn(PhaseId(4), False, "entry", 100, 8, 2)


@pytest.mark.parametrize(
    ("file", "chain", "newest", "told"),
    [
        (saved(3, in_flight=4), (3, 4), KEPT, ("work/4.work", "", 0, 0, 0)),
        (saved(3, in_flight=4), (3, 4), IN_LOG, ("", "entry", 100, 8, 2)),
        (saved(3, in_flight=4), (3, 4), CountedIn(PhaseId(4)), ("", "", 0, 0, 0)),
        (saved(3, in_flight=4), (3,), CountedIn(PhaseId(3), is_kept=True), ("", "", 0, 0, 0)),
        (saved(3), (3,), CountedIn(PhaseId(3), is_kept=True), ("", "", 0, 0, 0)),
    ],
)
def test_what_was_in_flight_is_given_up_as_far_as_its_entry_counted_it(
    file: SavedFeedback, chain: tuple[int, ...], newest: CountedIn, told: tuple[object, ...]
) -> None:
    site = at_start(file, chain, (), newest)
    request = site.outer_task and site.outer_task.request
    assert isinstance(request, local.RestoreSite)
    found = (request.kept_path, request.results_path, request.offset, request.lowrank_r, request.place)
    assert (request.phase, found) == (file.in_flight if 4 in chain else file.phase, told)


def test_nobody_knows_which_kept_work_is_needed_before_training_begins() -> None:
    """A site that comes back after many rounds takes snapshots while it catches up; what it owes must not go then."""
    site = SiteModel(PhaseSettings("phase", 4, 2, 0), record=SiteRecord(6, PhaseId(3)))
    site.contents = {4: Counter([4])}
    site.start_outer()
    site.load(0)
    site.settle_down()
    assert work_needed(site.machine.state) is None
    site.begin((), (4,))
    site.settle_down()
    assert work_needed(site.machine.state) == {4}


def test_saved_feedback_is_restored_before_the_first_phase() -> None:
    site = at_start(saved(3), (3,), ())
    assert site.said == []
    site.settle_down()
    assert isinstance(site.said[0], local_trainer.StartTraining) and site.said[0].phase == 6


def test_a_record_that_was_lost_with_its_disk_uses_no_number_of_the_chain_again() -> None:
    site = at_start(None, (3, 7), ())
    site.settle_down()
    assert isinstance(site.said[0], local_trainer.StartTraining) and site.said[0].phase == 8
