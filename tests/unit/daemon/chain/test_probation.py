"""The manifest of an open run says who is on probation, and for how long (M11)."""

import pytest

from dilocoxd.answers.peers import Peer, Probation
from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.daemon.chain.ledger import first_view
from dilocoxd.daemon.chain.probation import place_wait, probation_of
from dilocoxd.errors import ConfigError
from dilocoxd.ids import Digest, PeerId
from tests.harness.shapes import changed
from tests.harness.synthetic.fake_view import FakeView

FOUNDER, OTHER = PeerId("Qm" + "a" * 44), PeerId("Qm" + "b" * 44)


def manifest(**admission: object) -> Manifest:
    return manifest_from_tables({**preset_tables("tiny"), "admission": admission}, source="tiny")


def test_named_founders_are_members_from_the_start_and_others_see_how_far_they_are() -> None:
    view = first_view(manifest(mode="open", founders=[FOUNDER]), Digest(bytes(32)))
    found = probation_of(view, OTHER)
    assert found is not None and (found.rounds_done, found.rounds) == (0, 16)
    assert probation_of(view, FOUNDER) is None and view.probation_rounds == 16


def peers(*, counted: int, fresh: int, **changes: object) -> list[Peer]:
    """Live sites that train, but for `changes` of those on probation."""
    one = changed(FakeView(10).peers()[0], state="training", is_live=True)
    return [one] * counted + [changed(one, probation=Probation(rounds_done=3, rounds=16), **changes)] * fresh


@pytest.mark.parametrize(
    ("counted", "fresh", "told"),
    [
        (1, 0, ""),
        (1, 1, "2 such sites for 1 place in a round, who took part most often first"),
        (3, 1, "2 such sites for 1 place in a round, who took part most often first"),
        (4, 1, ""),
        (5, 4, "5 such sites for 2 places in a round, who took part most often first"),
    ],
)
def test_site_on_probation_is_told_that_rounds_have_no_place_for_all(counted: int, fresh: int, told: str) -> None:
    own = Probation(rounds_done=0, rounds=16)
    assert place_wait(own, peers(counted=counted, fresh=fresh)) == told
    assert place_wait(None, peers(counted=counted, fresh=fresh)) == "", "it counts in full"


@pytest.mark.parametrize("changes", [{"is_live": False}, {"state": "catching_up"}, {"state": "observing"}])
def test_who_offers_nothing_takes_no_place(changes: dict[str, object]) -> None:
    assert place_wait(Probation(rounds_done=0, rounds=16), peers(counted=1, fresh=3, **changes)) == ""


@pytest.mark.parametrize("admission", [{"mode": "invite"}, {"mode": "closed"}, {"mode": "open", "probation_rounds": 0}])
def test_nobody_is_on_probation_in_other_runs(admission: dict[str, object]) -> None:
    view = first_view(manifest(**admission), Digest(bytes(32)))
    assert view.probation_rounds == 0 and probation_of(view, OTHER) is None


@pytest.mark.parametrize(
    ("admission", "told"),
    [
        ({"mode": "invite", "founders": [FOUNDER]}, "nobody is on probation with admission.mode = 'invite'"),
        ({"mode": "open", "probation_rounds": 0, "founders": [FOUNDER]}, "probation_rounds = 0"),
        ({"mode": "open", "founders": [FOUNDER, FOUNDER]}, "names a site twice"),
        ({"mode": "open", "founders": ["bob"]}, "founders"),
        ({"mode": "open", "probation_rounds": 1025}, "probation_rounds"),
    ],
)
def test_founders_who_mean_nothing_are_refused(admission: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        manifest(**admission)


def test_what_is_not_set_leaves_the_id_of_a_run_as_it_was() -> None:
    assert manifest(mode="open").run_id == manifest(mode="open", probation_rounds=16, founders=[]).run_id
    assert manifest(mode="open").run_id != manifest(mode="open", probation_rounds=8).run_id
