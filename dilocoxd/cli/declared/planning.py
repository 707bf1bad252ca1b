"""`dilocoxd plan`: arguments, options and help; the work is in cli/plan.py."""

from typing import Any

import click


@click.command()
@click.argument("target", metavar="PRESET | run.toml | RUN_DIR")
@click.option("--link", required=True, metavar="RATE", help="Of each site, bit/s: 100M, or UPLOAD/DOWNLOAD: 20M/1G.")
@click.option("--rtt", default="50ms", show_default=True, metavar="TIME", help="Round trip between two sites.")
@click.option("--sites", type=click.IntRange(1, 1024), required=True, help="Sites in a round.")
@click.option(
    "--gpus",
    metavar="NxNAME",
    help="Of a whole site, all its nodes together, like 8xA100; without it a CPU core for each stage.",
)
@click.option(
    "--gpus-per-node",
    metavar="NxNAME",
    help="The same, said of one node: 8xA100 with --nodes 4 is --gpus 32xA100.",
)
@click.option("--stages", type=click.IntRange(1, 1024), help="Pipeline stages of a site; default: one for each GPU.")
@click.option("--nodes", type=click.IntRange(1, 1024), default=1, help="Machines of each site, all alike.")
@click.option("--step-time", metavar="TIME", help="Measured time of an inner step; without it computed.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.FIELD=VALUE",
    help="Any field of run.toml, or of [parallel] and [workers] in site.toml.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(**options: Any) -> int:
    """Predict exchange, rounds, bytes, memory and loss of a run. Starts nothing and writes nothing.

    docs/planning.md has the formulas, what was measured, and how far both were apart.
    """
    from dilocoxd.cli import plan

    return plan.plan(plan.PlanOptions(**options))
