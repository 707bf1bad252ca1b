"""What a StoreError, a refused command, an answer of the API or a command that asks a daemon says to do is followed.

Which errors are meant is said in test_kinds.py; the sentences of configuration are those of test_followed.py.
"""

from typing import Final

from tests.remedies.refused.elsewhere import ELSEWHERE
from tests.remedies.refused.refusals import other_refusals
from tests.remedies.refused.rooms.told import followed

FEWEST: Final = 60
"""Sentences; far fewer would say that the reading of the source is broken."""


def test_each_is_followed() -> None:
    found, done = other_refusals(), [*followed(), *ELSEWHERE]
    assert len(found) >= FEWEST
    rest = [one for one in found if not any(f == one.file and words in one.text for f, words in done)]
    assert not rest, "a new sentence: follow its words in rooms/: " + "\n".join(
        f"{one.file}:{one.line}: {one.text}" for one in rest
    )
