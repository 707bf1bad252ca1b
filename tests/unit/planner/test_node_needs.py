"""What nodes of a site need at least: what the planner counts for the same things, and never more than they take."""

import dataclasses

import pytest

from dilocoxd import __version__
from dilocoxd.config.footprint.counts import counted
from dilocoxd.config.footprint.estimate import PARAMETER_BYTES, PROCESS_BYTES, site_estimate
from dilocoxd.config.footprint.nodes import NO_NEEDS, NodeNeeds, node_needs
from dilocoxd.config.footprint.shape import shape_of
from dilocoxd.config.loading import validated
from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.config.site import SiteConfig
from dilocoxd.daemon.head.room import why_no_room
from dilocoxd.daemon.process.torch_release import torch_release
from dilocoxd.wire.local.node import STAGE_PLACE, NodeHello

GIB = 1 << 30


def small() -> Manifest:
    tables = preset_tables("small")
    tables["inner"] |= {"optimizer": "adamw", "batch_sequences": 16, "microbatches": 4}
    return manifest_from_tables(tables, source="small")


def site_of(parts_here: int, parts: int, stages: int = 0, **parallel: object) -> SiteConfig:
    tables = {
        "workers": {"outer_parts": parts_here},
        "cluster": {"outer_parts": parts, "stages": stages, "host": "10.0.0.1"},
        "parallel": parallel,
    }
    return validated(SiteConfig, tables, source="test")


def test_parts_share_what_one_outer_worker_holds() -> None:
    manifest = small()
    whole = site_estimate(manifest, site_of(1, 0)).outer_worker_bytes - PROCESS_BYTES
    needs = node_needs(manifest, site_of(2, 6))
    assert (needs.num_parts, needs.stage_bytes, needs.gpu_bytes) == (6, (), 0)
    assert needs.part_bytes == pytest.approx(whole / 8, abs=8)
    assert node_needs(manifest, site_of(2, 0)).num_parts == 0


def test_stages_hold_what_their_processes_do_with_anchor_and_phase_beside_them() -> None:
    manifest = small()
    cut = site_of(1, 0, stages=2, pipeline=4)
    slices = counted(manifest, shape_of(manifest, cut)).slices
    on_cpu = node_needs(manifest, cut)
    assert on_cpu.stage_bytes == tuple((PARAMETER_BYTES["adamw"] + 8) * one.trained for one in slices[2:])
    on_gpu = node_needs(manifest, site_of(1, 0, stages=2, pipeline=4, device="cuda", backend="nccl"))
    assert on_gpu.stage_bytes == tuple(8 * one.trained for one in slices[2:])
    assert on_gpu.gpu_bytes == max(PARAMETER_BYTES["adamw"] * one.trained for one in slices[2:])


def test_a_node_is_asked_for_no_more_than_the_site_has_for_it() -> None:
    needs = NodeNeeds(num_parts=2, part_bytes=10, stage_bytes=(1, 3, 2))
    assert needs.main_bytes(1, 0) == 10
    assert needs.main_bytes(9, 0) == 20
    assert needs.main_bytes(0, 2) == 5, "whichever it is given"
    assert needs.main_bytes(9, 9) == 26


def hello(parts: int, stages: int, memory: float, gpu: float = 0.0) -> NodeHello:
    return NodeHello(
        __version__, "", "", "n1", STAGE_PLACE, num_parts=parts, num_stages=stages, memory_bytes=int(memory * GIB),
        gpu_bytes=int(gpu * GIB),
    )  # fmt: skip


def test_sentence_names_the_node_what_it_would_hold_what_it_has_and_what_to_do() -> None:
    needs = NodeNeeds(num_parts=8, part_bytes=3 * GIB, stage_bytes=(GIB, 2 * GIB), gpu_bytes=20 * GIB)
    assert why_no_room(hello(4, 1, 8), "n1 (10.0.0.11)", needs) == (
        "the node n1 (10.0.0.11) offers room for 4 outer parts and 1 pipeline stage, which hold at least 14.00 GiB"
        " of main memory, but 8.00 GiB were free there when it started; start it with fewer --parts or --stages,"
        " end what else runs there, or use a machine with more memory"
    )
    assert why_no_room(hello(0, 2, 64, 16), "n1 (10.0.0.11)", needs) == (
        "the node n1 (10.0.0.11) offers room for 2 pipeline stages, whose trainers hold at least 20.00 GiB on a GPU"
        " each, but its smallest GPU has 16.00 GiB; use more parallel.pipeline, parallel.shard or parallel.tensor at"
        " the head, or a machine with larger GPUs"
    )


@pytest.mark.parametrize(
    "told", [hello(4, 1, 14, 20), hello(2, 1, 8, 20), hello(4, 0, 12, 1), hello(8, 8, 0), hello(0, 1, 2)]
)
def test_who_has_room_or_does_not_say_is_let_in(told: NodeHello) -> None:
    needs = NodeNeeds(num_parts=8, part_bytes=3 * GIB, stage_bytes=(GIB, 2 * GIB), gpu_bytes=20 * GIB)
    assert why_no_room(told, "n1", needs) == ""
    assert why_no_room(hello(63, 1024, 0.001), "n1", NO_NEEDS) == ""


def test_what_fits_no_place_of_the_head_is_told_with_what_does() -> None:
    parts, stages = NodeNeeds(num_parts=3), NodeNeeds(stage_bytes=(1,), gpu_bytes=1, stage_gpus=8)
    assert why_no_room(hello(0, 2, 8), "n1", parts) == (
        "the node n1 offers room for 2 pipeline stages, but cluster.outer_parts = 3 and cluster.stages = 0 at this"
        " head: nothing of that would ever run there; start it with --parts, or change site.toml of the head and start"
        " that again"
    )
    assert "start it with --stages" in why_no_room(hello(2, 0, 8), "n1", stages)
    assert why_no_room(hello(1, 1, 8), "n1", parts) == why_no_room(hello(1, 1, 8), "n1", stages) == "", "one is of use"
    few = dataclasses.replace(hello(0, 1, 8, 8), num_gpus=2)
    assert why_no_room(few, "n1", stages) == (
        "the node n1 offers room for 1 pipeline stage, and each has 8 trainers with a GPU of its own, but 2 GPUs are"
        " there; start it with fewer --stages, or lower parallel.shard, parallel.replicate or parallel.tensor at the"
        " head"
    )
    assert why_no_room(dataclasses.replace(few, num_gpus=8), "n1", stages) == ""
    more = dataclasses.replace(few, num_gpus=8, num_stages=3)
    assert why_no_room(more, "n1", stages) == "", "the head has one stage for nodes"


def test_another_release_of_torch_is_refused_whatever_it_was_built_for() -> None:
    told = dataclasses.replace(hello(1, 0, 8), torch="2.12.1")
    assert "has torch 2.12.1 and this head 2.13.0" in why_no_room(told, "n1", NO_NEEDS, "2.13.0")
    assert why_no_room(dataclasses.replace(told, torch="2.13.0"), "n1", NO_NEEDS, "2.13.0") == ""
    assert why_no_room(hello(1, 0, 8), "n1", NO_NEEDS, "2.13.0") == why_no_room(told, "n1", NO_NEEDS) == ""
    assert torch_release() and "+" not in torch_release()
