"""What `dilocoxd plan` says of a leg: its formulas for the leg's own run.toml, links and steps."""

from pathlib import Path

from dilocoxd.config.footprint.shape import shape_of
from dilocoxd.config.manifest import load_manifest
from dilocoxd.machines.exchange.cost import Link
from dilocoxd.planner.plan import Compute, Deployment, plan_run
from tests.bench.headline.ground import Ground


def planned_tokens_per_s(run_dir: Path, ground: Ground, bit_per_s: float) -> float:
    """Of all sites together. `bit_per_s`: of each link, each way; their round trip is counted as none."""
    manifest = load_manifest(run_dir / "run.toml")
    link, compute = Link(bit_per_s, bit_per_s, 0.0), Compute(0.0, ground.step_s)
    return plan_run(manifest, Deployment(link, shape_of(manifest, None, ground.num_sites), compute)).tokens_per_s
