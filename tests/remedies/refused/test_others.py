"""What a StoreError, a refused command or an answer of the API says to do: followed in rooms/, or counted here.

Which errors are meant is said in test_kinds.py; the sentences of configuration are those of test_followed.py.
"""

from collections import Counter
from typing import Final

from tests.remedies.refused.refusals import other_refusals
from tests.remedies.refused.rooms.told import followed

FEWEST = 45
"""Sentences; far fewer would say that the reading of the source is broken."""
LEFT: Final = {
    "api/commands.py": 2,
    "api/queries.py": 1,
    "api/stream.py": 2,
    "daemon/control.py": 3,
    "daemon/peers/authorities.py": 2,
    "daemon/peers/members.py": 2,
    "daemon/sampling.py": 1,
}
"""How many sentences of a file no test follows yet: it goes down only, for a new sentence is followed."""


def test_each_is_followed_or_counted() -> None:
    found, done = other_refusals(), followed()
    assert len(found) >= FEWEST
    rest = [one for one in found if not any(f == one.file and words in one.text for f, words in done)]
    assert Counter(one.file for one in rest) == LEFT, (
        "follow a new sentence in rooms/, and take away what is followed now: "
        + "\n".join(f"{one.file}:{one.line}: {one.text}" for one in rest)
    )
