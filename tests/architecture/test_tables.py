"""Tables of the protocol that the code has too: timers, and what is held about a peer (protocol/06-rounds.md)."""

import ast
import importlib
import re

from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.peers.table import STANDING, StandingRow
from dilocoxd.machines.round.timers import PROGRESS_OF_RESULTS, TIMERS, Timer
from tests.architecture.test_tidy import ROOT, parsed

CHAPTER = (ROOT / "protocol" / "06-rounds.md").read_text(encoding="utf-8")
LIMITS = RoundLimits()
PAUSES = {"repeat", "transfer", "recovery pause", "ignored"}
"""At their end nobody is blamed: R18 does not move them."""


def table(heading: str) -> dict[str, list[str]]:
    """Cells of the table under this heading, by its first column."""
    section = CHAPTER[CHAPTER.index(f"## {heading}") :].split("\n## ")[0]
    rows = [line.strip().strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row] for row in rows[2:]]
    return {row[0].strip("`"): row[1:] for row in cells}


def formula(cell: str) -> float | None:
    """Value of a length that is a formula of RoundLimits; None for one that is measured or grows."""
    found = re.match(r"`([a-z_ +*/0-9.]+)`", cell)
    if found is None or "median" in cell or "^" in cell:
        return None
    tree = ast.parse(found.group(1), mode="eval")
    names = {node.id: getattr(LIMITS, node.id) for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return float(eval(compile(tree, "protocol", "eval"), {"__builtins__": {}}, names))


def test_every_timer_of_the_protocol_is_one_of_the_machine_and_as_long() -> None:
    told = table("Timers")
    known: dict[str, Timer] = {timer.name: timer for timer in TIMERS if timer is not PROGRESS_OF_RESULTS}
    assert list(told) == list(known)
    for name, (started_by, _, length, _) in told.items():
        timer = known[name]
        assert formula(length) == (timer.length(LIMITS) if timer.length is not None else None), name
        assert timer.mark is None or started_by, name
    assert PROGRESS_OF_RESULTS.seconds(LIMITS) == 1.5 * LIMITS.progress_timeout_s
    assert "`1.5 * progress_timeout_s`" in told["progress"][2]


def test_a_lag_moves_every_timer_at_whose_end_somebody_is_blamed() -> None:
    assert {timer.name for timer in TIMERS if not timer.is_moved} == PAUSES
    assert all(f"*{name}*" in CHAPTER for name in PAUSES)
    assert all(timer.mark is not None for timer in TIMERS if timer.is_moved and timer.name != "behind")


def test_what_is_held_about_a_peer_is_told_in_the_protocol_with_its_end() -> None:
    told = table("Peer standing")
    assert [row.book for row in STANDING] == list(told)
    for row in STANDING:
        _, set_by, ended_by, *_ = told[row.book]
        assert (row.set_by, row.ended_by) == (set_by, ended_by), row.book


def test_every_item_lies_where_the_table_says() -> None:
    assert not [row.place for row in STANDING if not is_there(row)]


def is_there(row: StandingRow) -> bool:
    module, _, place = row.place.partition(":")
    name, attribute = place.split(".")
    path = ROOT / "dilocoxd" / "machines" / f"{module.replace('.', '/')}.py"
    (found,) = [node for node in parsed(path).body if isinstance(node, ast.ClassDef) and node.name == name]
    fields = {ast.unparse(n.target).removeprefix("self.") for n in ast.walk(found) if isinstance(n, ast.AnnAssign)}
    fields |= {
        ast.unparse(t).removeprefix("self.") for n in ast.walk(found) if isinstance(n, ast.Assign) for t in n.targets
    }
    return attribute in fields and hasattr(importlib.import_module(f"dilocoxd.machines.{module}"), name)
