"""docs/simulation-rules.md says of every rule whether the simulator watches it; rules/ watches those."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULE = re.compile(r"\b([RLSX])(\d+)(?: to [RLSX](\d+))?\b")


def rules_in(text: str) -> set[str]:
    found = [(letter, int(first), int(last or first)) for letter, first, last in RULE.findall(text)]
    return {f"{letter}{number}" for letter, first, last in found for number in range(first, last + 1)}


def told() -> list[tuple[set[str], str]]:
    text = (ROOT / "docs" / "simulation-rules.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith("|")][2:]
    return [(rules_in(row[1]), row[2].strip()) for row in rows]


def test_every_rule_is_told_once() -> None:
    chapters = ("04-streams.md", "06-rounds.md", "07-exchange.md", "09-catching-up.md")
    texts = [(ROOT / "protocol" / name).read_text(encoding="utf-8") for name in chapters]
    known = {rule for text in texts for rule in re.findall(r"(?m)^([RLSX]\d+)\.", text)}
    listed = sorted(rule for rules, _ in told() for rule in rules)
    assert listed == sorted(known)


def test_what_is_said_to_be_watched_is_watched() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "simulation" / "rules").glob("*.py")]
    watched = {rule for text in sources for rule in re.findall(r'f?"([RX]\d+):', text)}
    assert watched == {rule for rules, where in told() if where.startswith("watched") for rule in rules}
