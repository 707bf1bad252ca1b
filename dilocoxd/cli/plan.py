"""`dilocoxd plan`: what a run will need and yield on given links and machines, before anything is started."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from dilocoxd.cli.commands import new_manifest
from dilocoxd.cli.overrides import Sections, split_settings
from dilocoxd.cli.screens.layout import facts, width
from dilocoxd.config.footprint.shape import SiteShape, shape_of
from dilocoxd.config.loading import validated
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError
from dilocoxd.machines.exchange.cost import Link
from dilocoxd.planner.processors import Processors, parse_gpus
from dilocoxd.planner.quantities import parse_rates, parse_time

SITE_SECTIONS: Final = ("parallel", "workers")
"""Of site.toml, what says how a site cuts the model and the outer worker."""
RTT_MOST_S: Final = 10.0
STEP_LEAST_S, STEP_MOST_S = 1e-6, 86_400.0

_MORE: Final = "have more of them with --set parallel.pipeline=, .shard=, .replicate= or .tensor="


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What `dilocoxd plan` is asked: its argument and options (cli/declared/planning.py)."""

    target: str
    link: str
    rtt: str
    sites: int
    gpus: str | None
    gpus_per_node: str | None
    stages: int | None
    nodes: int
    step_time: str | None
    settings: tuple[str, ...]
    as_json: bool


def plan(asked: PlanOptions) -> int:
    """Exit code of `dilocoxd plan`. Raises ConfigError."""
    target, settings, stages, nodes = asked.target, asked.settings, asked.stages, asked.nodes
    changes, site_changes = split_settings(settings)
    if others := site_changes.keys() - SITE_SECTIONS:
        raise ConfigError(
            f"--set {min(others)}... belongs to site.toml; leave it out, plan takes of it only"
            f" {' and '.join(SITE_SECTIONS)}"
        )
    manifest = new_manifest(str(Path(target, "run.toml")) if target and Path(target).is_dir() else target, changes)
    # Only here: the plan of the tensors loads torch, which takes seconds.
    from dilocoxd.planner.advice import better_settings
    from dilocoxd.planner.plan import Compute, Deployment, plan_run
    from dilocoxd.planner.refusals import Machine, refusals
    from dilocoxd.planner.report import advice_lines, lines, values

    upload, download = parse_rates(asked.link)
    round_trip_s = parse_time("--rtt", asked.rtt, 0.0, RTT_MOST_S)
    processors = _processors(asked.gpus, asked.gpus_per_node, nodes)
    given_s = asked.step_time
    step_s = parse_time("--step-time", given_s, STEP_LEAST_S, STEP_MOST_S) if given_s is not None else 0.0
    count = processors.count if processors else stages or 1
    shape = replace(_shape(manifest, site_changes, stages, count, asked.sites), on_gpu=processors is not None)
    _check_nodes(nodes, shape)
    used = processors.used_by(shape.ranks) if processors else Processors(shape.ranks, None)
    compute = Compute(used.flop_per_s(shape.dtype or manifest.inner.dtype), step_s)
    place = Deployment(Link(upload, download, round_trip_s), shape, compute, nodes)
    found = plan_run(manifest, place)
    advice = better_settings(manifest, place, found)
    failing = list(refusals(manifest, found.footprint, Machine(0, used.gpu_memory_bytes(shape.ranks))))
    if asked.as_json:
        click.echo(json.dumps(values(found, advice) | {"cannot_work": failing}, indent=1))
        return 0
    rows = [("cannot work", text) for text in failing]
    rows += [("each site", processors.in_words(nodes))] if processors else []
    rows += lines(manifest, place, found, used.trained_on())
    if processors and used.count < processors.count:
        rows.append(
            ("idle GPUs", f"{processors.count - used.count} of {processors.count}: a trainer uses one, and {_MORE}")
        )
    rows += [("better", text) for text in advice_lines(advice, found)]
    click.echo(facts(rows, width(is_wide=False)))
    return 0


def _processors(gpus: str | None, gpus_per_node: str | None, nodes: int) -> Processors | None:
    """GPUs of a whole site; None: it has none. Raises ConfigError."""
    if gpus is not None and gpus_per_node is not None:
        raise ConfigError(
            f"--gpus {gpus} says all GPUs of a site and --gpus-per-node {gpus_per_node} those of one node; give one"
        )
    if gpus_per_node is not None:
        return parse_gpus(gpus_per_node, "--gpus-per-node", nodes)
    found = parse_gpus(gpus) if gpus is not None else None
    if found is not None and found.count % nodes:
        raise ConfigError(
            f"--gpus {gpus} is of a whole site, and its --nodes {nodes} are all alike: {found.count} do not divide"
            f" among them; give --gpus-per-node, say {-(-found.count // nodes)}x{found.name}"
        )
    return found


def _check_nodes(nodes: int, shape: SiteShape) -> None:
    """Raises ConfigError where a machine would have nothing to do."""
    processes = max(shape.ranks, shape.outer_parts)
    if nodes > processes:
        raise ConfigError(
            f"--nodes {nodes} is more than a site has trainers or outer parts ({processes}); lower it, or {_MORE}"
        )


def _shape(manifest: Manifest, given: Sections, stages: int | None, processors: int, sites: int) -> SiteShape:
    """Of each site, as site.toml would say; else a stage for each processor. Raises ConfigError."""
    parallel = given.get("parallel", {})
    if stages and str(parallel.get("pipeline", stages)) != str(stages):
        raise ConfigError(
            f"--stages {stages} and --set parallel.pipeline={parallel['pipeline']} contradict each other; leave one out"
        )
    if not parallel:
        stages = stages or min(processors, manifest.model.num_layers)
        parallel = {"microbatches": manifest.inner.microbatches if stages > 1 else 1}
    parallel = {"pipeline": stages or 1, **parallel}
    return shape_of(manifest, validated(SiteConfig, {**given, "parallel": parallel}, source="--set"), sites)
