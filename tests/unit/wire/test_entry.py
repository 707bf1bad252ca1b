"""What follows from the entries of a chain alone."""

from dilocoxd.wire.entry import missing_contributors


def test_missing_contributors_are_those_of_the_fullest_round() -> None:
    assert missing_contributors([2, 4, 3], 3) == 1
    assert missing_contributors([], 3) == 0
    assert missing_contributors([2], 3) == 0
