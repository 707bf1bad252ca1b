"""`dilocoxd --help` in groups with examples, readable at 80 columns; and what the shell completes."""

import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dilocoxd import cli as cli_package
from dilocoxd.cli.main import cli
from dilocoxd.cli.shell.command_table import GROUPS
from dilocoxd.cli.shell.lazy_group import LazyCommand
from dilocoxd.config.presets import strategy_names

COMMANDS = [command for group in GROUPS for command in group.commands]
HEAVY = {"torch", "numpy", "aiohttp", "pydantic", "hivemind"}


def first_sentence(command: click.Command) -> str:
    """Of its own help, without the stop."""
    paragraph = (command.help or "").partition("\n\n")[0].partition("\f")[0]
    return " ".join(paragraph.split()).partition(". ")[0].removesuffix(".")


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)
def test_the_table_says_what_the_command_says_of_itself(row: LazyCommand) -> None:
    command = cli.get_command(click.Context(cli), row.name)
    assert command is not None and command.name == row.name
    assert row.sentence and row.sentence == first_sentence(command)


def written_commands() -> set[click.Command]:
    """All that the modules of the command line define, but for subcommands."""
    names = [module.name for module in pkgutil.walk_packages(cli_package.__path__, f"{cli_package.__name__}.")]
    values = [value for name in names for value in vars(importlib.import_module(name)).values()]
    found = {value for value in values if isinstance(value, click.Command)}
    inner = {sub for group in found if isinstance(group, click.Group) for sub in group.commands.values()}
    return found - inner - {cli}


def test_every_command_that_is_written_is_in_the_table_once() -> None:
    loaded = [row.load() for row in COMMANDS]
    assert len(set(loaded)) == len(loaded) == len(cli.lazy)
    assert set(loaded) == written_commands()


def test_help_has_each_command_once_in_its_group_and_whole_sentences() -> None:
    text = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    assert [line for line in text.splitlines() if line and line[0] not in " U"] == [
        "Options:", *(f"{group.title}:" for group in GROUPS), "Examples:",
    ]  # fmt: skip
    named = [command.name for command in COMMANDS]
    assert cli.list_commands(click.Context(cli)) == named
    words = " ".join(text.split())
    for command in COMMANDS:
        assert words.count(f" {command.name} {command.sentence}") == 1
    assert "..." not in words.replace("Qm...", "").replace("[OPTIONS] COMMAND [ARGS]...", "")
    assert max(map(len, text.splitlines())) <= 80
    tools = text[text.index("Tools:") : text.index("Examples:")]
    assert "replay" in tools and "replay" not in text.replace(tools, "")


@pytest.mark.parametrize("width", [40, 60])
def test_help_of_a_narrow_terminal_fits_it(width: int) -> None:
    """At 40 columns names took 30 of them, and sentences had ten: a word a line, and over the edge."""
    lines = CliRunner().invoke(cli, ["--help"], terminal_width=width).output.splitlines()
    below = lines[next(number for number, line in enumerate(lines) if line.startswith(f"{GROUPS[0].title}:")) :]
    long = [line for line in below if len(line) > width]
    assert all(line.startswith("  dilocoxd ") for line in long), "only commands to copy are longer"


def loaded_by(call: str) -> set[str]:
    """Modules that a new process loads for this call of `cli`."""
    code = (
        "import sys; before = set(sys.modules); import click; from dilocoxd.cli.main import cli;"
        f" {call}; print('LOADED', *(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "call",
    [
        "cli.main(['--help'], standalone_mode=False)",
        "cli.main(['--version'], standalone_mode=False)",
        "assert cli.shell_complete(click.Context(cli), 's')",
    ],
)
def test_help_version_and_names_of_commands_import_no_command(call: str) -> None:
    modules = loaded_by(call)
    assert "dilocoxd.cli.shell.command_table" in modules
    assert not modules & (HEAVY | {row.place.partition(":")[0] for row in COMMANDS})


LIGHT = {"click", "msgpack", "cython_runtime"}
"""Whose packages help may load: the lists of choices and the limits that it shows are the protocol's (wire/)."""
FLOORS = ("cli", "wire", "errors", "ids", "site_names", "terminal")
SINGLE = {
    *("answers", "answers.words", "answers.limits", "ipc", "ipc.child", "store", "store.durable"),
    *("telemetry", "telemetry.catalogue"),
}
"""Modules of floors that are heavy otherwise."""
HEAVY_STANDARD = {"asyncio", "http.client", "multiprocessing", "socket", "ssl", "tomllib", "urllib.request"}


def is_light(module: str) -> bool:
    """Whether help may load it."""
    package, _, rest = module.partition(".")
    if package == "dilocoxd":
        return not rest or rest in SINGLE or rest.partition(".")[0] in FLOORS
    return package in LIGHT or package.startswith("_") or package in sys.stdlib_module_names


def words_of_all(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """How each command is called, and each command of a group."""
    for name in group.list_commands(click.Context(group)):
        yield (*before, name)
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from words_of_all(command, (*before, name))


def test_help_of_every_command_loads_nothing_but_what_it_shows() -> None:
    """One import of a configuration, of a client or of tensors takes longer than all the rest of help."""
    calls = [f"cli.main({[*words, '--help']!r}, standalone_mode=False)" for words in words_of_all(cli)]
    modules = loaded_by("; ".join(calls))
    assert len(calls) > len(COMMANDS) and {row.place.partition(":")[0] for row in COMMANDS} <= modules
    assert {module for module in modules if not is_light(module)} | modules & HEAVY_STANDARD == set()


def test_a_command_imports_its_own_module_and_no_other_command() -> None:
    modules = loaded_by("cli.main(['check-config', '--help'], standalone_mode=False)")
    assert {row.place.partition(":")[0] for row in COMMANDS} & modules == {"dilocoxd.cli.declared.checking"}


def test_who_asks_a_daemon_by_its_address_loads_no_configuration() -> None:
    call = "from click.testing import CliRunner; CliRunner().invoke(cli, ['status', 'http://127.0.0.1:9'])"
    modules = loaded_by(call)
    assert {"dilocoxd.cli.client", "dilocoxd.answers.status"} <= modules
    assert not {"dilocoxd.config.manifest", "dilocoxd.config.site", "torch", "aiohttp"} & modules


@pytest.mark.parametrize(("typed", "meant"), [("evalute", "evaluate"), ("chek-config", "check-config"), ("xyzzy", "")])
def test_a_wrong_name_is_refused_with_the_names_that_look_like_it(typed: str, meant: str) -> None:
    result = CliRunner().invoke(cli, [typed])
    assert result.exit_code == 2 and f"No such command '{typed}'." in result.output
    assert ("Did you mean" in result.output, f"'{meant}'" in result.output) == (bool(meant), bool(meant))


def completed(words: str, folder: Path) -> set[str]:
    """What bash is offered for the last word."""
    environment = {
        **os.environ, "_DILOCOXD_COMPLETE": "bash_complete", "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }  # fmt: skip
    code = "import sys; sys.argv = ['dilocoxd']; from dilocoxd.cli.main import cli; cli(prog_name='dilocoxd')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    return {line.split(",", 1)[1] for line in done.stdout.splitlines()}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("dilocoxd sna", {"snapshot", "snapshots"}),
        ("dilocoxd --v", {"--version"}),
        ("dilocoxd start s", {"small"}),
        ("dilocoxd start small:", {f"small:{name}" for name in strategy_names()}),
        ("dilocoxd init small --set outer.l", {"outer.lr="}),
        ("dilocoxd join --set site.", {"site.name=", "site.device_flops_peak="}),
        ("dilocoxd status g", {"good-0123"}),
        ("dilocoxd run sub/", {"sub/run"}),
        ("dilocoxd logs ot", {"ot"}),
    ],
)
def test_the_shell_knows_presets_strategies_fields_and_run_directories(
    tmp_path: Path, words: str, offered: set[str]
) -> None:
    for name in ("good-0123", "sub/run"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.toml").write_text("")
    (tmp_path / "games").mkdir()
    assert completed(words, tmp_path) == offered


def test_a_group_and_its_commands_come_from_one_module() -> None:
    """The table imports a group's module alone; what another module adds would exist in some processes only."""
    loaded = [(row.place.partition(":")[0], row.load()) for row in COMMANDS]
    groups = [(place, found) for place, found in loaded if isinstance(found, click.Group)]
    assert len(groups) >= 5
    for place, found in groups:
        assert {inner.callback.__module__ for inner in found.commands.values() if inner.callback} == {place}
