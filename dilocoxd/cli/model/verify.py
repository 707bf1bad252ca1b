"""`dilocoxd verify`: whether an exported model is what a run's log says."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from dilocoxd.cli.model.options import built_run_of, cache_option, tokenizer_of, tokenizer_option

SHOWN_MAX = 5


@click.command()
@click.argument("exported", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("run", metavar="RUN_DIR", type=click.Path(path_type=Path))
@tokenizer_option
@cache_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(exported: Path, run: Path, tokenizer: Path | None, cache: Path | None, as_json: bool) -> int:
    """Check what somebody exported against the log of a site of the run.

    DIR is the export, RUN_DIR the site's directory, your own or a copy of another's. The round that DIR says it is, is
    made again from the log; weights are compared number by number, configuration and tokenizer byte by byte. Exit code
    1 if anything differs. `dilocoxd log verify` checks the log itself.
    """
    # Only here: numpy is not needed by commands that answer at once.
    from dilocoxd.trained.proof.check import check_export

    found_run = built_run_of(run, "there is no export of it to check; check the log with `dilocoxd log verify RUN_DIR`")
    files = tokenizer_of(found_run, tokenizer, cache)
    found = check_export(found_run, files, exported, lambda text: click.echo(f"verify: {text}", err=True))
    if as_json:
        click.echo(json.dumps(asdict(found), indent=1))
    elif found.differing:
        shown = ", ".join(found.differing[:SHOWN_MAX])
        more = f" and {len(found.differing) - SHOWN_MAX} more" if len(found.differing) > SHOWN_MAX else ""
        click.echo(f"{exported} is not round {found.round} of {found.run_id}: {shown}{more} differ")
    else:
        click.echo(f"{exported} is round {found.round} of {found.run_id}: weights and {len(found.files)} files agree")
    return 1 if found.differing else 0
