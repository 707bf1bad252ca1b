"""`dilocoxd evict`: which site is meant."""

import pytest

from dilocoxd.answers.members import Member
from dilocoxd.cli.run_dir.members import member_called
from dilocoxd.errors import ConfigError
from tests.remedies.refused.elsewhere import refused


def member(peer_id: str, name: str) -> Member:
    return Member(
        peer_id=peer_id, name=name, state="member", serial="1f", role="contribute", uses=1, invite_expires_unix=5
    )


ROWS = [member("QmA", "anna"), member("QmB", "gpu"), member("QmC", "gpu")]


def test_site_is_found_by_its_name_and_by_its_peer_id() -> None:
    assert member_called("anna", ROWS, "QmC").peer_id == "QmA"
    assert member_called("QmB", ROWS, "QmC").name == "gpu"


@pytest.mark.parametrize(
    ("site", "said"),
    [
        ("nobody", "no member is called 'nobody'; give one of anna, gpu, gpu"),
        ("QmC", "QmC is this site itself; run `dilocoxd leave`, which ends its part in the run"),
    ],
)
def test_site_that_cannot_be_meant_is_refused(site: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        member_called(site, ROWS, "QmC")
    assert str(error.value) == said


def test_two_of_one_name_are_told_apart_by_their_ids() -> None:
    with refused("cli/run_dir/members.py", "give the peer id of one of them: "):
        member_called("gpu", ROWS, "QmA")
    assert member_called("QmB", ROWS, "QmA").serial == "1f"
