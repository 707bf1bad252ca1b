"""`dilocoxd data`: token stores. Runs in a process of its own, because this one never loads numpy."""

import signal
import subprocess
import sys
from typing import Final

import click

from dilocoxd.cli.exit_codes import FAILED
from dilocoxd.cli.shell.helper_ends import cause_of
from dilocoxd.cli.shell.telling import tell
from dilocoxd.errors import ConfigError
from dilocoxd.ipc.child import dies_with_us

SHOW_CURSOR: Final = "\x1b[?25h"


@click.group()
def data() -> None:
    """Pack text into token stores, adopt existing ones, look into them."""


@data.command()
@click.option("--tokenizer", required=True, metavar="PATH", help="tokenizer.json, or a folder with one.")
@click.option("--field", metavar="NAME", help="Field of JSON lines, column of tables; default: text, or messages.")
@click.option("--chat", is_flag=True, help="Conversations in JSON lines: only answers are trained.")
@click.option("--eos", default="", metavar="TOKEN", help="Token behind each document; default: the tokenizer's own.")
@click.option("--held-out", default=0.01, show_default=True, help="Part of the documents for validation, by hash.")
@click.option("--processes", type=int, metavar="N", help="Default: all cores.")
@click.argument("paths", nargs=-1, required=True, metavar="INPUT... OUT")
def pack(
    tokenizer: str,
    field: str | None,
    chat: bool,
    eos: str,
    held_out: float,
    processes: int | None,
    paths: tuple[str, ...],
) -> int:
    """Make a token store OUT of .jsonl, .parquet, .txt files (also .gz) or folders of them.

    A data set folder that Hugging Face `datasets` saved is such a folder. Repeat the command after a crash: it goes on.
    """
    options = ["--tokenizer", tokenizer, "--field", field or "", "--eos", eos, "--held-out", str(held_out)]
    options += ["--chat"] if chat else []
    return _run("pack", *options, *(["--processes", str(processes)] if processes else []), "--", *paths)


@data.command()
@click.option("--tokenizer", metavar="PATH", help="The tokenizer that made the tokens.")
@click.option("--vocab-size", type=int, metavar="N", help="Without --tokenizer: how many token ids there are.")
@click.option("--eos-id", type=int, metavar="ID", help="Token that ends a document.")
@click.option("--dtype", type=click.Choice(["uint16", "uint32", "int32"]), help="Of files without .idx.")
@click.option("--validation", multiple=True, metavar="FILE", help="A file only for validation (repeatable).")
@click.option("--held-out", default=0.01, show_default=True, help="Without --validation: part at the end of each file.")
@click.argument("paths", nargs=-1, required=True, metavar="INPUT... OUT")
def adopt(
    tokenizer: str | None,
    vocab_size: int | None,
    eos_id: int | None,
    dtype: str | None,
    validation: tuple[str, ...],
    held_out: float,
    paths: tuple[str, ...],
) -> int:
    """Make a token store OUT of Megatron .bin/.idx or nanoGPT .bin files, which stay where they are."""
    chosen = {"--tokenizer": tokenizer, "--vocab-size": vocab_size, "--eos-id": eos_id, "--dtype": dtype}
    options = [text for name, value in chosen.items() if value is not None for text in (name, str(value))]
    options += [text for file in validation for text in ("--validation", file)]
    return _run("adopt", *options, "--held-out", str(held_out), "--", *paths)


@data.command()
@click.option("--seq-len", default=1024, show_default=True, help="Tokens of a sample.")
@click.option("--volumes", default=1, metavar="N", help="As a run cuts it (data.volumes): what is in each, and here.")
@click.option("--check", is_flag=True, help="Read all of it and compare the hashes.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.argument("store")
def show(seq_len: int, volumes: int, check: bool, as_json: bool, store: str) -> int:
    """Documents, tokens, samples of a token store, and how long its documents are."""
    flags = [*(["--check"] if check else []), *(["--json"] if as_json else [])]
    return _run("show", "--seq-len", str(seq_len), "--volumes", str(volumes), *flags, "--", store)


def _run(*arguments: str) -> int:
    """Exit code of the process that does it. It hears no Ctrl-C, and ends with us: one of us says that it ended."""
    command, tie = [sys.executable, "-m", "dilocoxd.trainer.tokens", *arguments], dies_with_us()

    def begin() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # A signal to this process alone would leave the other one at work, and the store locked.
        tie()

    with subprocess.Popen(command, preexec_fn=begin) as process:  # noqa: PLW1509 (no other thread of ours runs)
        code = None
        try:
            code = process.wait()
        finally:
            if code is None:  # we are told to stop
                process.kill()
                if sys.stderr.isatty():
                    click.echo(SHOW_CURSOR, err=True)  # its bar has hidden it
    if code == -signal.SIGXCPU:
        raise ConfigError("a text takes its tokenizer longer than any does; take it out, or give another tokenizer")
    if code < 0:
        tell(f"dilocoxd: {cause_of(code, '')}; repeat the command")
        return FAILED
    return code
