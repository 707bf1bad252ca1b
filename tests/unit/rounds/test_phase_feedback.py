"""Error feedback on disk: restored only when nothing of it can be in the chain already, and before training."""

import pytest

from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.rounds import phase_events as ev
from dilocoxd.rounds.phases import feedback_to_restore
from dilocoxd.wire import local
from tests.unit.rounds.site_model import SiteModel


def saved(at: int, formed: int | None = None, in_flight: int | None = None) -> ev.SiteRecord:
    """Feedback saved when phase `at` was settled; `formed` was offered at height 5 later on."""
    phases = [PhaseId(p) if p is not None else None for p in (at, in_flight, formed)]
    return ev.SiteRecord(9, PhaseId(at), phases[0], phases[1], phases[2], RoundIndex(5) if formed else None)


@pytest.mark.parametrize(
    ("record", "height", "newest", "restored"),
    [
        (ev.SiteRecord(), 5, None, None),
        (saved(3, 3), 5, 3, 3),
        (saved(3), 5, 4, None),
        (saved(3, 4), 5, 3, None),
        (saved(3, 4), 6, 3, None),
        (saved(3, 4), 7, 3, 3),
        (saved(3, 4), 7, 4, None),
        (saved(3, 4, in_flight=4), 5, 4, 4),
        (saved(3, 4, in_flight=4), 5, 3, None),
        (saved(3, 4, in_flight=4), 7, 3, 3),
        (saved(3, 5, in_flight=4), 5, 4, None),
        (saved(3, 5, in_flight=4), 7, 4, 4),
        (saved(3, 5, in_flight=4), 7, 5, None),
    ],
)
def test_feedback_on_disk_is_used_only_if_nothing_can_be_counted_twice(
    record: ev.SiteRecord, height: int, newest: int | None, restored: int | None
) -> None:
    own = PhaseId(newest) if newest is not None else None
    assert feedback_to_restore(record, RoundIndex(height), own) == restored


def test_saved_feedback_is_restored_before_the_first_phase() -> None:
    site = SiteModel(ev.PhaseSettings("phase", 4, 2, 0), record=ev.SiteRecord(5, PhaseId(3), PhaseId(3)))
    site.start_outer()
    site.load(0)
    site.settle_down()
    site.start_trainer()
    site.settle_down()
    assert site.machine.waiting_for == "Waiting to catch up with the run before training starts."
    site.begin(height=4, newest_own_phase=3)
    assert isinstance(site.outer_task and site.outer_task.request, local.RestoreSite)
    assert site.said == []
    site.settle_down()
    assert isinstance(site.said[0], local.StartTraining) and site.said[0].phase == 5
