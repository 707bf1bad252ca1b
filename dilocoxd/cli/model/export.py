"""`dilocoxd export`: the trained model as a directory that transformers, and what understands its files, can load."""

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dilocoxd.answers.words import in_bytes
from dilocoxd.cli.model.options import (
    LOAD_IT,
    built_run_of,
    cache_option,
    round_option,
    tell_of_newer,
    tokenizer_of,
    tokenizer_option,
)
from dilocoxd.errors import PeerError

if TYPE_CHECKING:
    from dilocoxd.cli.client import ApiClient

NOW_TIMEOUT_S = 600.0
"""For --now: a snapshot of a large model takes minutes to write."""
LOOK_S = 0.5
LARGEST_GB = 1e9
"""No file is larger."""


@click.command()
@click.argument("path", metavar="RUN_DIR | SNAPSHOT", type=click.Path(path_type=Path))
@click.option("--out", "out", required=True, metavar="DIR", type=click.Path(path_type=Path), help="New directory.")
@round_option
@click.option("--average", type=click.IntRange(min=1), default=1, metavar="N", help="Mean of the last N rounds.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="Number format of the weights.",
)
@click.option(
    "--shard-gb", type=click.FloatRange(min=0, min_open=True), default=5.0, show_default=True, help="Largest file."
)
@click.option("--now", is_flag=True, help="Have the running daemon write a snapshot first.")
@tokenizer_option
@cache_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def export(
    path: Path,
    out: Path,
    number: int | None,
    average: int,
    dtype: str,
    shard_gb: float,
    now: bool,
    tokenizer: Path | None,
    cache: Path | None,
    as_json: bool,
) -> int:
    """Write the trained model as files that transformers loads: weights, config, tokenizer, card.

    Of a stopped or a running site, or of one snapshot (RUN_DIR/snapshots/ROUND). Needs no GPU. A round without a
    snapshot is made again from the log, in memory. A third party can check the result: see README.md in it.
    """
    if not math.isfinite(shard_gb):
        raise click.BadParameter(f"{shard_gb} is no size", param_hint="--shard-gb")
    # Only here: numpy is not needed by commands that answer at once.
    from dilocoxd.trained.export import Wanted, export as write_model

    def tell(line: str) -> None:
        click.echo(f"export: {line}", err=True)

    run = built_run_of(path, LOAD_IT)
    files = tokenizer_of(run, tokenizer, cache)
    if now:
        from dilocoxd.cli.client import client_for

        number = _snapshot_now(client_for(str(path)))
    wanted = Wanted(number, average, dtype, int(min(shard_gb, LARGEST_GB) * 1e9))
    done = write_model(run, wanted, files, out, tell)
    if as_json:
        found = {
            "directory": str(done.directory),
            "round": done.round,
            "num_parameters": done.num_parameters,
            "total_bytes": done.total_bytes,
            "files": done.files,
        }
        click.echo(json.dumps(found, indent=1))
        return 0
    click.echo(
        f"round {done.round}, {done.num_parameters:,} parameters, {in_bytes(done.total_bytes)}: {done.directory}"
    )
    if number is None:
        tell_of_newer(run, done.round, tell)
    return 0


def _snapshot_now(client: "ApiClient") -> int:
    """Round of a snapshot at least as new as the state that the daemon has now. Raises PeerError if none comes."""
    from dilocoxd.answers.site import CommandDone
    from dilocoxd.answers.status import Status

    wanted = client.ask("/v1/status", Status).height
    deadline = time.monotonic() + NOW_TIMEOUT_S
    why = ""
    while (newest := _newest(client)) < wanted:
        if time.monotonic() > deadline:
            raise PeerError(
                f"{client.url}: no snapshot of state {wanted} within {NOW_TIMEOUT_S:g} s ({why or 'see its alerts'});"
                " leave out --now to take the newest one"
            )
        try:
            # Again and again: one that the next entry overtakes is not written.
            client.ask("/v1/control/snapshot", CommandDone, {})
        except PeerError as error:
            why = str(error)
        time.sleep(LOOK_S)
    return newest


def _newest(client: "ApiClient") -> int:
    from dilocoxd.answers.site import Snapshot

    return max((row.round for row in client.ask("/v1/snapshots", list[Snapshot])), default=-1)
