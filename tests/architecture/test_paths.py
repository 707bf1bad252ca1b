"""The paths that docs/architecture.md tells can be walked: each file is there, and the rule breaks as told. The map of
docs/internals.md has every room, and its contracts are those of the code."""

import ast
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dilocoxd.machines.recovery.interface.status import RecoveryStatus
from dilocoxd.machines.recovery.machine import RecoveryMachine
from dilocoxd.machines.round.machine import RoundMachine
from dilocoxd.machines.round.outputs import RoundStatus

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
IN_PRODUCT = re.compile(r"`([a-z_0-9]+(?:/[a-z_0-9]+)*(?:/|\.py))`")
FILES_OF_THE_PATH_MIN = 20
INTERNALS = (ROOT / "docs" / "internals.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text below the heading that begins with `title`."""
    found = re.search(rf"^## {re.escape(title)}.*?$(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
    assert found is not None, f"docs/architecture.md has no section {title!r}"
    return found.group(1)


STRANGER = section("A stranger's path")
FIVE = [ROOT / path for path in re.findall(r"^\d\. \[([^\]]+)\]", STRANGER, re.M)]


def missing_files(text: str) -> list[str]:
    """Files and folders that the text names in backticks and that are neither in the product nor in the repository."""
    named = IN_PRODUCT.findall(text)
    return [name for name in named if not any((place / name).exists() for place in (ROOT / "dilocoxd", ROOT))]


def test_every_file_on_the_path_of_a_pseudo_gradient_exists() -> None:
    assert not missing_files(TEXT)
    steps = section("Straight through")
    assert len(re.findall(r"^\d\. \*\*", steps, re.M)) == 8
    files = [name for name in IN_PRODUCT.findall(steps) if name.endswith(".py")]
    assert len(files) >= FILES_OF_THE_PATH_MIN


def test_every_place_in_the_picture_of_processes_exists() -> None:
    places = re.findall(r"\bdilocoxd/[a-z_0-9/]+(?:\.py)?", section("Processes of one site"))
    assert places
    assert not [place for place in places if not (ROOT / place).exists()]


def test_check_finds_a_file_that_has_moved() -> None:
    assert missing_files("`machines/round/grouping.py`, `rounds/round.py`, `rounds/`") == ["rounds/round.py", "rounds/"]


def test_the_map_of_internals_has_every_room() -> None:
    rows = [line.split("|")[1] for line in INTERNALS.partition("## 2.")[0].splitlines() if line.startswith("| `")]
    told = {re.split(r"[/`{]", row.strip().lstrip("`"))[0] for row in rows}
    rooms = {path.name for path in (ROOT / "dilocoxd").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert told == rooms
    (machines,) = re.findall(r"`machines/\{([a-z,]+)\}/`", INTERNALS)
    assert set(machines.split(",")) == {path.parent.name for path in (ROOT / "dilocoxd/machines").glob("*/__init__.py")}


@pytest.mark.parametrize(("machine", "status"), [(RoundMachine, RoundStatus), (RecoveryMachine, RecoveryStatus)])
def test_contracts_of_internals_are_those_of_the_code(machine: type, status: type) -> None:
    (told,) = re.findall(rf"^class {machine.__name__}:(.*?)^```", INTERNALS, re.M | re.S)
    (begin,) = re.findall(r"^ +(def __init__\(.*) -> None$", told, re.M)
    (function,) = ast.parse(f"{begin}: ...").body
    assert isinstance(function, ast.FunctionDef)
    assert [one.arg for one in function.args.args[1:]] == list(inspect.signature(machine).parameters)
    fields = re.findall(r"\w+", told.partition(f"status: {status.__name__} (")[2].partition(")")[0])
    assert fields == list(inspect.signature(status).parameters)
    methods = set(re.findall(r"def ([a-z]\w+)\(", told))
    assert methods == {name for name in methods if callable(getattr(machine, name, None))}


def test_the_stranger_reads_five_files() -> None:
    assert len(FIVE) == 5
    assert not [path for path in FIVE if not path.is_file()]
    demo, _, chapter, code, test = (path.read_text(encoding="utf-8") for path in FIVE)
    for name in re.findall(r"`(_[a-z_]+)`", STRANGER):
        assert f"def {name}(" in demo, f"{FIVE[0].name} has no {name}"
    assert re.search(r"^R14\. .*[Mm]ajority", chapter, re.M)
    assert "def missing_majority(" in code
    assert f"def {_named_test()}(" in test


def test_the_broken_rule_fails_in_the_test_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both as told: the code as it is passes, and with the one changed line it does not."""
    rule, broken = _change()
    code, tests = FIVE[3].read_text(encoding="utf-8"), _loaded(FIVE[4], "stranger_tests")
    assert code.count(rule) == 1, f"{FIVE[3].name} has {rule!r} {code.count(rule)} times"
    changed = tmp_path / "grouping_with_a_broken_rule.py"
    changed.write_text(code.replace(rule, broken), encoding="utf-8")
    check = getattr(tests, _named_test())
    check()
    monkeypatch.setattr(tests, "missing_majority", _loaded(changed, "stranger_rule").missing_majority)
    with pytest.raises(AssertionError, match="half is not more than half"):
        check()


def test_the_broken_rule_spoils_the_story_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the way that is told: nobody waits for a majority any more."""
    from tests.stories.library import STORIES

    (story,) = [story for story in STORIES if story.path == FIVE[1]]
    _break_the_rule(monkeypatch)
    with pytest.raises(AssertionError, match="the story's moment never came"):
        story.play()


def test_the_broken_rule_fails_the_schedules_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other of those that the command runs."""
    from tests.simulation.test_seeds import SCENARIOS

    named = set(re.findall(r"`(majority_[a-z_]+)`", STRANGER))
    assert len(named) == 2
    asked = [scenario for scenario in SCENARIOS if "majority" in scenario.__name__]
    _break_the_rule(monkeypatch)
    assert {scenario.__name__ for scenario in asked if scenario()} == named


def _break_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half is enough, wherever the function is imported."""
    from dilocoxd.machines.round import grouping

    rule, broken = _change()
    code = FIVE[3].read_text(encoding="utf-8").replace(rule, broken)
    half_is_enough = ModuleType("half_is_enough")
    monkeypatch.setitem(sys.modules, "half_is_enough", half_is_enough)
    exec(compile(code, "half_is_enough.py", "exec"), half_is_enough.__dict__)
    monkeypatch.setattr(grouping.missing_majority, "__code__", half_is_enough.missing_majority.__code__)


def _change() -> tuple[str, str]:
    """(the expression as it is, what it becomes)."""
    found = re.search(r"`([^`]+)` becomes `([^`]+)`", STRANGER)
    assert found is not None, "the path does not say what to change"
    return found.group(1), found.group(2)


def _named_test() -> str:
    (name,) = set(re.findall(r"`(test_[a-z_]+)`", STRANGER))
    return name


def _loaded(path: Path, name: str) -> ModuleType:
    """The file as a module of its own."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module
