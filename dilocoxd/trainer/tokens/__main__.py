"""`python -m dilocoxd.trainer.tokens pack|adopt|show`: what `dilocoxd data` runs, in a process with numpy.

Last line of stdout: what was made, as JSON. stderr: progress, notices, one sentence for a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from dilocoxd.errors import ConfigError, StoreError, of_the_system
from dilocoxd.trainer.tokens.adopt import AdoptOptions, adopt
from dilocoxd.trainer.tokens.describe import check_hashes, describe, text_lines
from dilocoxd.trainer.tokens.limits import bound_memory
from dilocoxd.trainer.tokens.pack import PackOptions, pack
from dilocoxd.trainer.tokens.store import open_store

EXIT_FAILED: Final = 1
_LINE_S: Final = 10.0
"""Between two lines of progress where no bar can be drawn."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; exit code 78 for what the user must change, 1 for a disk that refuses."""
    options = _parser().parse_args(arguments)
    commands: dict[str, Callable[[argparse.Namespace], None]] = {"pack": _pack, "adopt": _adopt, "show": _show}
    try:
        commands[options.command](options)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return ConfigError.exit_code
    except MemoryError:
        sys.stderr.write("error: what was given takes more memory than any text or store; give another\n")
        return ConfigError.exit_code
    except StoreError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_FAILED
    except OSError as error:
        refused = of_the_system(error)
        sys.stderr.write(f"error: {refused}\n")
        return refused.exit_code if isinstance(refused, ConfigError) else EXIT_FAILED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dilocoxd data")
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("--tokenizer", type=Path, required=True)
    packing.add_argument("--field", default="")
    packing.add_argument("--chat", action="store_true")
    packing.add_argument("--eos", default="")
    packing.add_argument("--held-out", type=float, default=0.01)
    packing.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    packing.add_argument("paths", type=Path, nargs="+")
    adopting = commands.add_parser("adopt")
    adopting.add_argument("--tokenizer", type=Path, default=None)
    adopting.add_argument("--vocab-size", type=int, default=0)
    adopting.add_argument("--eos-id", type=int, default=None)
    adopting.add_argument("--dtype", choices=["uint16", "uint32", "int32"], default="uint16")
    adopting.add_argument("--validation", type=Path, action="append", default=[])
    adopting.add_argument("--held-out", type=float, default=0.01)
    adopting.add_argument("paths", type=Path, nargs="+")
    showing = commands.add_parser("show")
    showing.add_argument("--seq-len", type=int, default=1024)
    showing.add_argument("--volumes", type=int, default=1)
    showing.add_argument("--check", action="store_true")
    showing.add_argument("--json", action="store_true")
    showing.add_argument("store", type=Path)
    return parser


def _pack(options: argparse.Namespace) -> None:
    inputs, out = _in_and_out(options.paths)
    _require_fraction(options.held_out)
    field = options.field or ("messages" if options.chat else "text")
    chosen = PackOptions(options.tokenizer, field, options.eos, options.held_out, options.processes, options.chat)
    with _Reporter("packing", "B") as report:
        pack(inputs, out, chosen, report.tell, report.progress)
    _made(out)


def _adopt(options: argparse.Namespace) -> None:
    inputs, out = _in_and_out(options.paths)
    _require_fraction(options.held_out)
    chosen = AdoptOptions(
        options.tokenizer,
        options.vocab_size,
        options.eos_id,
        options.dtype,
        tuple(options.validation),
        options.held_out,
    )
    with _Reporter("reading", "tokens") as report:
        adopt(inputs, out, chosen, report.progress)
    _made(out)


def _show(options: argparse.Namespace) -> None:
    if options.seq_len < 1:
        raise ConfigError(f"--seq-len {options.seq_len}: a sample has at least one token; give a larger number")
    if options.volumes < 1:
        raise ConfigError(f"--volumes {options.volumes}: a store has at least one; give a larger number")
    store = open_store(options.store, options.volumes)
    if options.check:
        with _Reporter("checking", "B") as report:
            here = [shard for shard in store.index.shards if not store.lacks(shard)]
            total = sum(store.place(shard).path.stat().st_size for shard in here)
            done = 0
            for num_bytes in check_hashes(store, here):
                done += num_bytes
                report.progress(done, total)
    found = describe(store, options.seq_len, options.volumes)
    sys.stdout.write(json.dumps(found) + "\n" if options.json else "\n".join(text_lines(found)) + "\n")


def _require_fraction(held_out: float) -> None:
    if not 0.0 <= held_out < 1.0:
        raise ConfigError(f"--held-out {held_out}: a part of the documents; give a number from 0 to below 1")


def _in_and_out(paths: list[Path]) -> tuple[list[Path], Path]:
    if len(paths) < 2:
        raise ConfigError("an argument is missing; give what is read first and the new store last: INPUT... OUT")
    return paths[:-1], paths[-1]


def _made(out: Path) -> None:
    found = describe(open_store(out), 1024)
    sys.stdout.write(json.dumps({"store": str(out), **found}) + "\n")


class _Reporter:
    """Progress: a bar on a terminal, else a line now and then."""

    def __init__(self, what: str, unit: str) -> None:
        self._what, self._unit = what, unit
        console = Console(stderr=True)
        columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console) if console.is_terminal else None
        self._task = self._bar.add_task(what, total=None) if self._bar is not None else None
        self._said = self._started = time.monotonic()

    def __enter__(self) -> _Reporter:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, text: str) -> None:
        """A notice that must not be missed."""
        if self._bar is not None:
            self._bar.console.print(text)
        else:
            sys.stderr.write(text + "\n")

    def progress(self, done: int, total: int) -> None:
        """So much of all is done."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total)
            return
        now = time.monotonic()
        if now - self._said < _LINE_S and done < total:
            return
        self._said = now
        rate = done / max(1e-9, now - self._started)
        sys.stderr.write(f"{self._what}: {done:,} of {total:,} {self._unit}, {rate:,.0f} {self._unit}/s\n")
        sys.stderr.flush()


if __name__ == "__main__":
    bound_memory()
    sys.exit(main())
