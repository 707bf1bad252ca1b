"""Write all stories anew: `python -m tests.stories`. Look at what git says has changed, and commit it with its cause.

`--check` writes nothing and exits with 1 if a story goes another way than its text."""

import argparse
import sys

from tests.stories.library import STORIES
from tests.stories.story import FOLDER


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    if parser.parse_args().check:
        changed = [story.file for story in STORIES if story.text() != story.path.read_text(encoding="utf-8")]
        print(f"{len(STORIES)} stories, changed: {changed}")
        return 1 if changed else 0
    for path in set(FOLDER.glob("*.txt")) - {story.path for story in STORIES}:
        path.unlink()
    for story in STORIES:
        story.path.write_text(story.text(), encoding="utf-8")
    print(f"{len(STORIES)} stories in {FOLDER.relative_to(FOLDER.parents[1])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
