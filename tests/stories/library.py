"""All stories, in the order in which they are best read."""

from typing import Final

from tests.stories import failures, forks, liars, membership, undisturbed
from tests.stories.story import Story

STORIES: Final[tuple[Story, ...]] = (
    *undisturbed.STORIES,
    *failures.STORIES,
    *membership.STORIES,
    *forks.STORIES,
    *liars.STORIES,
)
