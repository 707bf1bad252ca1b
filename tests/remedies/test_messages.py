"""What error messages tell people to type can be typed: each command and option that they name exists."""

import ast
from collections.abc import Iterator

import click
import pytest

from dilocoxd.cli.main import cli
from dilocoxd.cli.shell.default_command import SHOW, DefaultCommand
from tests.remedies.messages import FOREIGN, OPTION, ROOT, VALUE, Message, messages
from tests.remedies.refused.refusals import kinds_told_to_users

FEWEST = 150
"""Literals that name a command or an option; far fewer would say that the reading of the source is broken."""


def options_of(command: click.Command) -> set[str]:
    """Of this command alone, with the help that all have."""
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}


def walked(command: click.Command) -> Iterator[click.Command]:
    """The command and all below it."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from walked(below)


def problem_of(told: str) -> str:
    """Why what follows `dilocoxd` cannot be typed; empty if it can."""
    words = told.split()
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        if isinstance(command, DefaultCommand) and words[0] not in command.commands:
            words = [SHOW, *words]
        if words[0].startswith("-"):
            break
        word = words[0]
        found = command.get_command(click.Context(command), word)
        if found is None:
            is_free = word.isupper() or word == VALUE
            return "" if is_free and "--help" in words else f"{command.name} has no command {word!r}"
        command, words = found, words[1:]
    unknown = set(OPTION.findall(" ".join(words))) - options_of(command) - FOREIGN.keys()
    return f"{command.name} has no option {', '.join(sorted(unknown))}" if unknown else ""


@pytest.fixture(scope="module")
def found() -> list[Message]:
    return messages()


def test_the_source_is_read(found: list[Message]) -> None:
    assert len(found) >= FEWEST
    assert any("`dilocoxd config show RUN_DIR`" in one.text for one in found)


def test_commands_in_messages_exist_with_the_options_that_they_are_given(found: list[Message]) -> None:
    wrong = [
        f"{one.where}: `dilocoxd {told}`: {why}" for one in found for told in one.commands if (why := problem_of(told))
    ]
    assert not wrong, "\n".join(wrong)


def shown_plain(handler: ast.ExceptHandler, kinds: set[str]) -> Iterator[int]:
    """Lines where an error of the system is put into a sentence for people as Python writes it."""
    for call in ast.walk(handler):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in kinds:
            for node in ast.walk(call):
                is_text = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str"
                value = node.value if isinstance(node, ast.FormattedValue) else node.args[0] if is_text else None
                if isinstance(value, ast.Name) and value.id == handler.name:
                    yield node.lineno


def test_what_the_system_refuses_is_told_without_its_number() -> None:
    """`[Errno 28] No space left on device: 'x'` is Python's; `reason_of` has the words alone."""
    found, kinds = [], kinds_told_to_users()
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            caught = node.type if isinstance(node, ast.ExceptHandler) else None
            if caught is not None and "OSError" in {one.id for one in ast.walk(caught) if isinstance(one, ast.Name)}:
                found += [f"{path.relative_to(ROOT)}:{line}" for line in shown_plain(node, kinds)]
    assert not found, f"say `reason_of(error)` there: {found}"


def test_commands_and_options_in_help_texts_exist() -> None:
    """Those of docstrings, which the source does not show as messages."""
    commands = list(walked(cli))
    known = {option for command in commands for option in options_of(command)}
    for command in commands:
        told = Message(f"help of {command.name}", command.help or "")
        assert not [why for one in told.commands if (why := problem_of(one))]
        assert set(told.options) <= known


def test_options_in_messages_exist(found: list[Message]) -> None:
    known = {option for command in walked(cli) for option in options_of(command)}
    wrong = [f"{one.where}: {option}" for one in found for option in one.options if option not in known]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("told", "why"), [
    ("identity new RUN_DIR", ""),
    ("identity newer RUN_DIR", "identity has no command 'newer'"),
    ("pauze", "has no command 'pauze'"),
    ("status --yaml VALUE", "status has no option --yaml"),
])  # fmt: skip
def test_what_cannot_be_typed_is_found(told: str, why: str) -> None:
    assert problem_of(told).endswith(why)
    assert bool(problem_of(told)) == bool(why)
