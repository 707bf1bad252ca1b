"""Every numbered rule of protocol/ is shown by a test, and rules.toml names only tests and rules that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.conformance.vectors import loaded

ROOT = Path(__file__).resolve().parents[2]
CITED = tomllib.loads((Path(__file__).parent / "rules.toml").read_text(encoding="utf-8"))
RULE = re.compile(r"(?:^|(?<=\s))([A-Z]\d{1,2}|R-[a-e])\. |^## (C\d+) ", re.MULTILINE)


def rules_of_the_chapters() -> list[str]:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "protocol").glob("[01]*.md")))
    return [first or second for first, second in RULE.findall(text)]


def rules_of_the_transcripts() -> set[str]:
    return {rule for row in loaded("rounds")["transcripts"] for rule in row["rules"].split()}


def test_rules_have_numbers_of_their_own() -> None:
    rules = rules_of_the_chapters()
    assert len(rules) == len(set(rules)) > 90


def test_every_rule_is_cited_by_a_test_or_listed_with_the_reason() -> None:
    rules, cited, uncited = set(rules_of_the_chapters()), set(CITED["rules"]), set(CITED["uncited"])
    assert not rules - cited - uncited, f"no test cites {sorted(rules - cited - uncited)}: add one to rules.toml"
    assert not (cited | uncited) - rules, (
        f"rules.toml names rules that are not in protocol/: {(cited | uncited) - rules}"
    )
    assert not cited & uncited


@pytest.mark.parametrize("rule", CITED["rules"])
def test_what_a_rule_cites_exists(rule: str) -> None:
    for name in CITED["rules"][rule]:
        if name == "transcripts":
            assert rule in rules_of_the_transcripts(), f"no transcript of rounds.json names {rule}"
            continue
        path, _, function = name.partition("::")
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^\s*(async )?def {re.escape(function)}\(", source, re.MULTILINE), f"{name} does not exist"


def test_transcripts_name_only_rules_that_exist() -> None:
    assert rules_of_the_transcripts() <= set(rules_of_the_chapters())
