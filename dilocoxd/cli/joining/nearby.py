"""`dilocoxd join` without a link: which runs the sites on the local network tell of, and how to join each."""

from typing import Final

import click

from dilocoxd.cli.exit_codes import DONE
from dilocoxd.cli.screens.layout import Column, table
from dilocoxd.errors import ConfigError
from dilocoxd.swarm.discovery.lan import LocalRun, look

LISTEN_S: Final = 3.0


def show_local_runs() -> int:
    """Listen, print what was heard. Raises ConfigError when it was nothing."""
    click.echo(f"no link was given; listening on the local network for {LISTEN_S:g} s", err=True)
    found = look(LISTEN_S)
    if not found:
        raise ConfigError(
            "no site on this network tells of a run; give `dilocoxd join` the link that `dilocoxd start` or `dilocoxd"
            " invite` printed (a site tells while it runs in a terminal, or with network.lan_announce = 'always')"
        )
    click.echo(screen(found))
    return DONE


def screen(found: list[LocalRun]) -> str:
    """What was heard, and what to do next. Every field has a form that cannot drive a terminal."""
    columns = [
        Column("run", [one.run for one in found]),
        Column("site", [one.site or "-" for one in found]),
        Column("admission", [one.admission for one in found]),
        Column("address", [one.address for one in found], 1),
    ]
    lines = [table(columns, None), ""]
    for one in {one.run: one for one in reversed(found)}.values():
        if one.admission == "open":
            lines.append(f"join {one.run} with: dilocoxd join {one.address}")
        elif one.admission == "invite":
            lines.append(f"to join {one.run}, ask its operator for a link: dilocoxd invite RUN_DIR")
        else:
            lines.append(f"{one.run} is closed: its operators list who takes part (network.peers_allowed)")
    return "\n".join((*lines, "Anybody on this network can say so; only a link names a run by its hash."))
