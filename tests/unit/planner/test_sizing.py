"""The sizing table of docs/cluster.md has the numbers that the planner counts."""

import functools
from pathlib import Path

import pytest

from dilocoxd.config.footprint.estimate import PAYLOADS_KEPT
from dilocoxd.config.footprint.shape import SiteShape
from dilocoxd.errors import ConfigError
from dilocoxd.planner.footprint import Footprint, footprint
from dilocoxd.planner.pace import outer_part_s
from tests.harness.large_runs import run_of

PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"
HEADING = "## What a model asks for"
GPUS_OF_NODE = 8
PARTS_OF_NODE = {1: 8, 4: 8, 20: 3}
"""By nodes: a site has at most 64."""
LAYOUTS = {
    "1B": {1: (1, 8), 4: (4, 8), 20: (20, 8)},
    "7B": {1: (1, 8), 4: (4, 8), 20: (20, 8)},
    "70B": {1: (8, 1), 4: (32, 1), 20: (40, 4)},
    "107B": {1: (8, 1), 4: (32, 1), 20: (40, 4)},
}
"""By size and nodes: pipeline, shard. Shards stay inside a node (ADR 35)."""


@functools.cache
def weighed(size: str, lowrank_r: int, nodes: int) -> Footprint:
    """Two sites, blocks computed again, two microbatches of one sequence for each stage, logits of 1,024 tokens."""
    pipeline, shard = LAYOUTS[size][nodes]
    assert pipeline * shard == GPUS_OF_NODE * nodes
    microbatches = 2 * pipeline if pipeline > 1 else 1
    shape = SiteShape(
        pipeline, microbatches, 2, shard=shard, batch_sequences=shard * microbatches, is_checkpointed=True,
        loss_chunk_tokens=1024, on_gpu=True, outer_parts=PARTS_OF_NODE[nodes] * nodes,
    )  # fmt: skip
    return footprint(run_of(size, lowrank_r), shape)


def _disk_of_node(size: str, weight: Footprint) -> int:
    """Without the log, which is the head's."""
    snapshot = run_of(size).snapshot
    return weight.disk_bytes - max(PAYLOADS_KEPT, snapshot.keep * snapshot.every_rounds) * weight.payload_bytes


def row_of(size: str, nodes: int) -> str:
    """One line of the table."""
    pipeline, shard = LAYOUTS[size][nodes]
    layout = f"pipeline {pipeline}" + (f" x shard {shard}" if shard > 1 else "")
    try:
        dense, low = weighed(size, 0, nodes), weighed(size, 256, nodes)
    except ConfigError:
        return f"| {size} | {nodes} | {layout} | refused: more stages than layers | | | | |"
    cells = (
        f"{dense.parameters / 1e9:.1f}B" if size != "1B" else f"{dense.parameters / 1e9:.2f}B",
        f"{dense.trainer_bytes / 2**30:.0f} GiB",
        f"{dense.node_bytes / nodes / 2**30:.0f} GiB",
        f"{_disk_of_node(size, dense) / nodes / 1e9:.0f} GB",
        f"{dense.payload_bytes / 1e9:.2f} / {low.payload_bytes / 1e9:.2f} GB",
        f"{outer_part_s(dense.parameters, PARTS_OF_NODE[nodes] * nodes):.0f} s",
    )
    return f"| {size} ({cells[0]}) | {nodes} | {layout} | " + " | ".join(cells[1:]) + " |"


@pytest.mark.parametrize("size", LAYOUTS)
def test_sizing_table_is_what_the_planner_counts(size: str) -> None:
    section = PAGE.read_text().partition(HEADING)[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith(f"| {size}")]
    assert rows == [row_of(size, nodes) for nodes in LAYOUTS[size]]
