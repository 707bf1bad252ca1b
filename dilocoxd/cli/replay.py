"""`dilocoxd replay`: plays what a daemon recorded of its round machine to a new one and prints what happened, and why.

The machine is deterministic: the same events give the same commands, on any machine and without the network. Where they
differ from the recording, this version decides otherwise than the one that recorded.
"""

import json
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import click

from dilocoxd.errors import ConfigError, StoreError
from dilocoxd.machines.round.inputs import DeadlineReached, MessageReceived
from dilocoxd.machines.round.outputs import Broadcast, Command, Send
from dilocoxd.machines.transcript import Input, Opening, Outcome, Player, Record, decode
from dilocoxd.site_names import short_id
from dilocoxd.store.recording import SUFFIX, read_records, recordings
from dilocoxd.store.rundir import RunDir
from dilocoxd.wire.entry import Signature, SignedVote

EXIT_DIFFERS: Final = 1
_BYTES_SHOWN: Final = 4
_ITEMS_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class Step:
    """One event that was played."""

    number: int
    at_s: float
    """Since the machine was made."""
    event: str
    commands: tuple[str, ...]
    state: str
    waiting_for: str
    is_same: bool


def told(value: Any) -> str:
    """A value in few words: hashes and keys by their beginning, long lists by their length."""
    if isinstance(value, bytes):
        return value[:_BYTES_SHOWN].hex() or "empty"
    if isinstance(value, SignedVote):
        return f"vote of {short_id(value.peer)}"
    if isinstance(value, Signature):
        return f"signature {value.value[:_BYTES_SHOWN].hex()}"
    if isinstance(value, tuple | frozenset):
        items = sorted(value) if isinstance(value, frozenset) else list(value)
        more = f", ... {len(items)} in all" if len(items) > _ITEMS_SHOWN else ""
        return f"[{', '.join(told(item) for item in items[:_ITEMS_SHOWN])}{more}]"
    if is_dataclass(value):
        parts = ", ".join(f"{field.name}={told(getattr(value, field.name))}" for field in fields(value))
        return f"{type(value).__name__}({parts})"
    if isinstance(value, str) and len(value) > 40 and value.isalnum():
        return short_id(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def event_text(given: Input) -> str:
    """An event; a message with its sender in front."""
    event = given.event
    if isinstance(event, MessageReceived):
        return f"{short_id(event.peer)} says {told(event.message)}"
    return told(event)


def command_text(command: Command) -> str:
    """A command; a message with its receiver in front."""
    if isinstance(command, Broadcast):
        return f"to all: {told(command.message)}"
    if isinstance(command, Send):
        return f"to {short_id(command.peer)}: {told(command.message)}"
    return told(command)


def pairs(records: Iterator[Record]) -> Iterator[tuple[Input, Outcome | None]]:
    """Each input with what came of it; None for one in which the daemon died."""
    waiting: Input | None = None
    for record in records:
        if isinstance(record, Outcome) and waiting is not None:
            yield waiting, record
            waiting = None
        elif isinstance(record, Input):
            waiting = record
    if waiting is not None:
        yield waiting, None


def played(path: Path) -> Iterator[Step]:
    """Every event of a recording, played to a new machine. Raises StoreError."""
    from dilocoxd.swarm.discovery.identity import is_signed_by

    records = (decode(data) for data in read_records(path))
    opening = next(records, None)
    if not isinstance(opening, Opening):
        raise StoreError(f"{path}: the recording has no beginning; the daemon ended before its round machine was made")
    player = Player(opening, is_signed_by)
    first: float | None = None
    for number, (given, outcome) in enumerate(pairs(records)):
        first = given.now if first is None else first
        ordered, is_same = player.play(given, outcome)
        status = player.machine.status
        where = f"round {status.round} attempt {status.attempt} {status.state}"
        commands = tuple(command_text(command) for command in ordered)
        yield Step(number, given.now - first, event_text(given), commands, where, status.waiting_for, is_same)


def chosen(target: Path, life: int) -> Path:
    """The recording that `target` and `--life` mean. Raises ConfigError."""
    if target.is_file():
        return target
    found = recordings(RunDir(target.absolute()).logs)
    if not found:
        raise ConfigError(
            f"{target}: no recording (*{SUFFIX} in logs/); give a run directory whose site.toml has log.recording_mib"
            " above 0, or a recording"
        )
    if life > len(found):
        raise ConfigError(f"--life is {life}, but {target} has {len(found)} recordings; use 1 for the newest")
    return found[-life]


def replay(target: Path, life: int, last: int, with_idle: bool, as_json: bool) -> int:
    """Exit code of `dilocoxd replay` (cli/declared/replay.py). Raises ConfigError."""
    path = chosen(target, life)
    shown: deque[Step] = deque(maxlen=min(last, sys.maxsize) or None)
    total, first_difference, before = 0, None, ""
    for step in played(path):
        total += 1
        if not step.is_same and first_difference is None:
            first_difference = step.number
        is_idle = not step.commands and step.is_same and f"{step.state}{step.waiting_for}" == before
        before = f"{step.state}{step.waiting_for}"
        if is_idle and not with_idle:
            continue
        if last:
            shown.append(step)
        else:
            show(step, as_json=as_json)
    for step in shown:
        show(step, as_json=as_json)
    verdict = (
        "as recorded" if first_difference is None else f"DIFFERENT from the recording since event {first_difference}"
    )
    click.echo(f"{path.name}: {total} events, commands {verdict}", err=True)
    return 0 if first_difference is None else EXIT_DIFFERS


def show(step: Step, *, as_json: bool) -> None:
    """Print one step."""
    if as_json:
        click.echo(json.dumps({field.name: getattr(step, field.name) for field in fields(step)}))
        return
    mark = "" if step.is_same else "  DIFFERS FROM THE RECORDING"
    idle = DeadlineReached.__name__
    event = "a deadline" if step.event == f"{idle}()" else step.event
    click.echo(f"{step.at_s:12.3f} #{step.number} {event}{mark}")
    for text in step.commands:
        click.echo(f"{'':14}-> {text}")
    click.echo(f"{'':14}   {step.state}, waits for {step.waiting_for}")
