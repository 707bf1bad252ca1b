"""Leaving while the outer worker is down: what only this site has is in the buffers, and the next worker saves it."""

import pytest

from dilocoxd.ids import PhaseId
from dilocoxd.machines.phase import inputs as ev
from dilocoxd.machines.phase.settings import PhaseSettings, SavedFeedback, SiteRecord
from tests.unit.machines.phase.site_model import SiteModel
from tests.unit.machines.phase.test_machine import close_first_boundary, training_site


@pytest.mark.parametrize("is_back_first", [False, True])
def test_leaving_while_the_outer_worker_is_down_saves_when_it_is_back(is_back_first: bool) -> None:
    site = training_site("phase")
    close_first_boundary(site)
    site.commit(is_included=True)
    site.settle_down()
    site.lose_outer(after_effect=False)
    site.send(ev.LeaveOrdered())
    if is_back_first:
        site.start_outer()
    site.settle_down(until_due=True)
    if not is_back_first:
        assert site.trainer is None, "the trainers need not wait for it"
        assert not site.has_left and site.machine.waiting_for == "the outer worker to start"
        site.start_outer()
        site.settle_down(until_due=True)
    assert site.has_left
    assert site.saved == SavedFeedback(PhaseId(0), None, {}) and site.machine.state.record.last_settled == 0


def test_site_that_never_had_an_outer_worker_leaves_at_once() -> None:
    site = SiteModel(PhaseSettings("phase", 4, 2, 0), SiteRecord(phases_reserved=3, last_settled=PhaseId(1)))
    site.begin()
    site.send(ev.LeaveOrdered())
    assert site.has_left and site.saved is None
