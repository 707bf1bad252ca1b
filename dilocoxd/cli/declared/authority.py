"""`dilocoxd authority`: arguments, options and help; the work is in cli/run_dir/authority.py."""

from pathlib import Path
from typing import Any

import click

from dilocoxd.cli.declared.options import run_argument
from dilocoxd.cli.show import json_option, target_argument
from dilocoxd.wire.admission import AUTHORITIES_MAX
from dilocoxd.wire.authorities import CHANGES_MAX


@click.group()
def authority() -> None:
    """The keys that decide who may join a run."""


@authority.command("new")
@click.argument("file", type=click.Path(path_type=Path))
def new_key(**options: Any) -> int:
    """Make a key, and print its public half for admission.authorities of a new run."""
    from dilocoxd.cli.run_dir import authority

    return authority.new_key(**options)


@authority.command("export")
@run_argument
@click.argument("file", type=click.Path(path_type=Path))
def export_keys(**options: Any) -> int:
    """Copy the keys of a run directory to FILE: whoever has it decides who may join."""
    from dilocoxd.cli.run_dir import authority

    return authority.export_keys(**options)


@authority.command("import")
@run_argument
@click.argument("file", type=click.Path(path_type=Path))
def import_keys(**options: Any) -> int:
    """Add the keys in FILE to a run directory, which may invite and evict then."""
    from dilocoxd.cli.run_dir import authority

    return authority.import_keys(**options)


@authority.command("sign")
@click.argument("request_file", metavar="REQUEST", type=click.Path(path_type=Path))
@click.argument("key_file", metavar="KEY_FILE", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Do not ask; without a terminal nothing is asked.")
def sign_request(**options: Any) -> int:
    """Sign an invite, an eviction or a change of the authorities, where several decide together.

    REQUEST is the file that `invite`, `evict` or `authority rotate` wrote; it holds no secret. KEY_FILE is what
    `authority new` or `authority export` wrote. In a terminal it asks before it signs.
    """
    from dilocoxd.cli.run_dir import authority

    return authority.sign_request(**options)


@authority.command("show")
@target_argument
@json_option
def show_lists(**options: Any) -> int:
    """Show who decides, who did before, and whom members vote for."""
    from dilocoxd.cli.run_dir import authority

    return authority.show_lists(**options)


key_option = click.option(
    "--key", "keys", multiple=True, metavar="KEY",
    help="A new authority: its public key in hex, or the file of `authority new`; repeat it for several.",
)  # fmt: skip
threshold_option = click.option(
    "--threshold", type=click.IntRange(1, AUTHORITIES_MAX), help="So many of them must sign.  [default: 1]"
)
void_option = click.option(
    "--void-invites", is_flag=True, help="Links made before admit nobody new; who is a member stays."
)


@authority.command("rotate")
@run_argument
@key_option
@threshold_option
@void_option
@click.option("--signed", type=click.Path(path_type=Path), help="A request that enough authorities have signed.")
def rotate(**options: Any) -> int:
    """Put other authorities in the place of those of now, who sign it.

    Where several authorities must sign, a file is written for them to sign with `dilocoxd authority sign`; then the
    change is made with --signed FILE. For that the daemon of RUN_DIR must run: it tells the others.

    \b
        dilocoxd authority new new.key
        dilocoxd authority rotate RUN_DIR --key new.key
        dilocoxd authority import RUN_DIR new.key

    Name all authorities that shall decide then, those that stay too. If a key was stolen, add --void-invites, and have
    members vote for the new list (`authority vote`): a thief can sign another one, and votes go before signatures.
    """
    from dilocoxd.cli.run_dir import authority

    return authority.rotate(**options)


@authority.command("vote")
@run_argument
@click.argument("list_id", metavar="[ID]", required=False)
@key_option
@threshold_option
@void_option
@click.option(
    "--instead-of", type=click.IntRange(1, CHANGES_MAX), metavar="LIST", help="Undo this list and later ones."
)
def vote(**options: Any) -> int:
    """Vote as a member for other authorities: two thirds of those who contributed lately replace them.

    For keys that are lost or stolen; no authority's key is needed. The first member names the new keys, the others run
    the command with the ID that it prints (`authority show` has it too).

    \b
        dilocoxd authority vote RUN_DIR --key new.key
        dilocoxd authority vote RUN_DIR 1f0c5a77b2d4

    A vote for a list that is signed already confirms it: no other list with its number goes before it. --instead-of 1
    puts the new list in the place of list 1, which a thief has signed, and of all that follow it.
    """
    from dilocoxd.cli.run_dir import authority

    return authority.vote(**options)
