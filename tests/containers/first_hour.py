"""The README's way from nothing to three sites, typed as it stands there, with the time that hands and machines take.

Each machine is a fresh container of Debian with Python and nothing else. pip finds the wheel of this tree where a
package index would be, and the packages that it needs; nothing else of the outside can be reached.
"""

import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.containers.engine import FOLDER, base_image, client, copy_source, docker, run, say, wheels
from tests.containers.node import Node, full_name, remove
from tests.harness.running.sites import ROOT, wait_until
from tests.harness.running.terminals import INTERRUPT, Terminal, in_terminal

SECTION = "## Two machines, two commands"
FENCED = re.compile(r"^```[a-z]*\n(.*?)^```", re.M | re.S)
NETWORK = "walk"
SUBNET = "203.0.113.0/24"
"""The one that documents use: the address in the command is the machine's own, and nothing in it is replaced."""
ADDRESSES = {"one": "203.0.113.7", "two": "203.0.113.8", "three": "203.0.113.9"}
PROMPT = "you$ "
WORDS_PER_MINUTE, LETTERS_PER_WORD = 40, 5
PASTE_S = 5.0
"""To mark a line in one window and to put it into another."""
PATIENCE_S = 1500.0
LINK = re.compile(r"^ *(dilocoxd join /ip4/\S+) *\n", re.M)
"""A whole line: a part of it is no link."""
FAILED = re.compile(r"^(?:dilocoxd|error): ", re.M | re.I)
"""How commands begin to say why they give up."""


@dataclass(frozen=True)
class Commands:
    """What the README says to type, without its comments."""

    install: tuple[str, ...]
    start: str
    join: str


def commands() -> Commands:
    """AssertionError if the section no longer shows an installation, a start and a join, in this order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition(SECTION)[2].partition("\n## ")[0]
    blocks = [tuple(_typed(line) for line in block.splitlines() if _typed(line)) for block in FENCED.findall(section)]
    assert len(blocks) == 3, f"README, {SECTION!r}: {len(blocks)} blocks of commands"
    install, (start,), (join,) = blocks
    assert install[-1].startswith("pip install") and start.startswith("dilocoxd start"), blocks
    assert join.startswith("dilocoxd join "), join
    return Commands(install, start, join)


def _typed(line: str) -> str:
    return line.partition(" #")[0].strip()


def typing_s(letters: int) -> float:
    """At the keyboard."""
    return letters * 60 / (WORDS_PER_MINUTE * LETTERS_PER_WORD)


@dataclass
class Took:
    """One line of the table."""

    what: str
    letters: int
    """Typed, on all machines together, with each return."""
    hands_s: float
    """Typing and pasting."""
    machines_s: float
    """Until the command has done what the next one needs, with three machines on the cores of one."""
    cpu_s: float
    """CPU time of the machine that computed most: about what the step takes on a machine of its own."""


@dataclass
class Walk:
    """Three machines, a terminal on each, and what each step took."""

    machines: dict[str, Node]
    terminals: dict[str, Terminal]
    took: list[Took] = field(default_factory=list)

    def step(self, what: str, typed: dict[str, list[str]], until: Callable[[], object], *, pasted: int = 0) -> None:
        """Type lines on machines, and wait; `pasted` of them are not typed but pasted."""
        letters = 0
        started, before = time.monotonic(), {name: cpu_s(machine) for name, machine in self.machines.items()}
        for name, lines in typed.items():
            for line in lines:
                self.terminals[name].press(line.encode() + b"\r")
                letters += len(line) + 1
        if pasted:
            letters = pasted  # a return for each

        def is_done() -> object:
            assert not any(FAILED.search(terminal.text) for terminal in self.terminals.values()), self.describe()
            return until()

        wait_until(is_done, what, PATIENCE_S, self.describe, poll_s=0.5)
        hands_s = typing_s(letters) + PASTE_S * pasted
        machines_s = time.monotonic() - started
        computed_s = max(cpu_s(machine) - before[name] for name, machine in self.machines.items())
        self.took.append(Took(what, letters, hands_s, machines_s, computed_s))
        say(f"{what}: {letters} letters, hands {hands_s:.0f} s, machines {machines_s:.0f} s, CPU {computed_s:.0f} s")

    def describe(self) -> str:
        """What a failed wait shows."""
        return "\n".join(f"--- {name}\n{terminal.text[-2500:]}" for name, terminal in self.terminals.items())

    def is_idle(self, name: str, prompts: int) -> bool:
        """Whether the shell has asked for a command so many times."""
        return self.terminals[name].text.count(PROMPT) >= prompts

    def table(self) -> str:
        """As it stands in docs/lab/first-hour.md."""
        sums = [
            sum(values)
            for values in zip(*((t.letters, t.hands_s, t.machines_s, t.cpu_s) for t in self.took), strict=True)
        ]
        rows = [(t.what, t.letters, t.hands_s, t.machines_s, t.cpu_s) for t in self.took]
        lines = [f"| {what} | " + " | ".join(f"{n:.0f}" for n in numbers) + " |" for what, *numbers in rows]
        total = "| together | " + " | ".join(f"{n:.0f}" for n in sums) + " |"
        head = "| step | letters typed | hands, s | machines, s | CPU, s |\n|---|---|---|---|---|"
        return "\n".join((head, *lines, total))


def cpu_s(machine: Node) -> float:
    """CPU time of a container so far, in seconds; of either kind of control groups."""
    files = "cat /sys/fs/cgroup/cpuacct/cpuacct.usage 2>/dev/null || grep usage_usec /sys/fs/cgroup/cpu.stat"
    words = machine.sh(files).split()
    return int(words[-1]) / (1e9 if len(words) == 1 else 1e6)


@contextmanager
def three_machines() -> Iterator[Walk]:
    """Fresh containers, with a shell in a terminal on each; nothing of them stays."""
    base, packages, own = base_image(), wheels(), _own_wheel()
    machines = {name: Node(f"{NETWORK}-{name}") for name in ADDRESSES}
    names = [one.name for one in machines.values()]
    _clear(names)
    docker("network", "create", "--internal", "--subnet", SUBNET, full_name(NETWORK))
    try:
        for name, machine in machines.items():
            docker(
                "run", "--detach", "--init", "--name", machine.id, "--hostname", name, "--network", full_name(NETWORK),
                "--ip", ADDRESSES[name],
                "--volume", f"{packages}:/index/packages:ro", "--volume", f"{own}:/index/own:ro",
                "--env", "PIP_NO_INDEX=1", "--env", "PIP_FIND_LINKS=/index/packages /index/own",
                "--env", f"PS1={PROMPT}", "--env", "TERM=xterm", "--workdir", "/root",
                "--entrypoint", "sleep", base, "infinity",
            )  # fmt: skip
        with ExitStack() as stack:
            shells = {}
            for name, machine in machines.items():
                command = [*client(), "exec", "--interactive", "--tty", machine.id, "bash", "--norc"]
                shells[name] = stack.enter_context(in_terminal(command, FOLDER, {}))
            yield Walk(machines, shells)
            for shell in shells.values():
                shell.press(INTERRUPT)
    finally:
        _clear(names)


def _clear(names: list[str]) -> None:
    remove(*names)
    if full_name(NETWORK) in docker("network", "ls", "--format", "{{.Name}}").split():
        docker("network", "rm", full_name(NETWORK))


def _own_wheel() -> Path:
    """Folder with the wheel of this tree."""
    source, folder = FOLDER / "walk.source", FOLDER / "walk.wheel"
    shutil.rmtree(folder, ignore_errors=True)
    copy_source(source)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    run(*pip, "-w", folder, source)
    shutil.rmtree(source)
    return folder
