"""Plans of 1B to 107B parameters, without allocating one: segments by the model, low rank that compresses, messages
within their limits."""

import pytest

from dilocoxd.config.footprint.shape import SiteShape
from dilocoxd.config.manifest import manifest_from_canonical, manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.ids import Attempt, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.planner.footprint import factored_share, footprint
from dilocoxd.planner.refusals import Machine, refusals
from dilocoxd.wire.entry import Contribution, Entry, Signature, SignedEntry, SignedVote, decode_entry, encode_entry
from dilocoxd.wire.local.outer_worker import ContributionFormed
from dilocoxd.wire.local.registry import LOCAL_MESSAGES
from dilocoxd.wire.messages import PEER_MESSAGES, Propose, ResultHashes
from tests.harness.large_runs import SIZES, run_of

HASH = b"h" * 32
PEER = PeerId("Q" * 46)
SIGNED = Signature(b"k" * 64, b"s" * 64)


@pytest.mark.parametrize(("size", "num_segments"), [("1B", 1033), ("7B", 1031), ("70B", 1073), ("107B", 1833)])
def test_about_a_thousand_segments_whatever_the_model(size: str, num_segments: int) -> None:
    plan = make_plan(run_of(size))
    assert len(plan.segments) == num_segments
    assert plan.segment_numel_max <= 1 << 26


@pytest.mark.parametrize(
    ("size", "lowrank_r", "ratio", "share"),
    [
        ("1B", 24, 0.020, 0.999),
        ("1B", 256, 0.204, 0.98),
        ("1B", 1024, 0.73, 0.83),
        ("7B", 24, 0.012, 0.999),
        ("7B", 256, 0.122, 0.999),
        ("7B", 2048, 0.78, 0.70),
        ("70B", 24, 0.010, 0.999),
        ("70B", 256, 0.095, 0.998),
        ("70B", 2048, 0.68, 0.90),
        ("107B", 24, 0.012, 0.999),
        ("107B", 256, 0.115, 0.999),
        ("107B", 2048, 0.68, 0.71),
    ],
)
def test_low_rank_compresses_at_every_size(size: str, lowrank_r: int, ratio: float, share: float) -> None:
    """With segments of 2^20 elements 7B with r = 256 and all of the others with r = 2048 sent what plain int4 sends."""
    plan, dense = make_plan(run_of(size, lowrank_r)), make_plan(run_of(size))
    assert plan.payload_total < ratio * dense.payload_total
    assert factored_share(plan) > share


@pytest.mark.parametrize(("size", "lowrank_r"), [("1B", 2048), ("7B", 4096)])
def test_low_rank_that_cannot_compress_is_refused(size: str, lowrank_r: int) -> None:
    manifest = run_of(size, lowrank_r)
    weight = footprint(manifest, SiteShape(1, 0, 2))
    (text,) = refusals(manifest, weight, Machine())
    assert f"lowrank_r = {lowrank_r} factors only 0% of the values" in text
    assert f"one segment of {manifest.strategy.segment_elements_max} elements" in text


def test_the_papers_largest_run_is_refused_by_the_machine_only() -> None:
    manifest = run_of("107B", 2048)
    weight = footprint(manifest, SiteShape(20, 0, 2, on_gpu=True))
    assert not list(refusals(manifest, weight, Machine()))
    gpu, node = refusals(manifest, weight, Machine(2 << 40, 80 << 30))
    assert "the fullest stage needs about" in gpu and "a GPU has 80.0 GiB" in gpu
    assert "the site needs about" in node and "this machine has 2048.0 GiB" in node


def test_what_was_chosen_is_in_the_manifest() -> None:
    manifest = run_of("7B")
    assert manifest.strategy.segment_elements_max == 7073792
    named = run_of("7B", segment_elements_max=manifest.strategy.segment_elements_max)
    assert named.sha256() == manifest.sha256()
    asked = run_of("7B", segment_elements_max=0)
    assert asked == manifest
    assert "segment_elements_max = 7073792" in manifest.to_toml()
    assert manifest_from_canonical(manifest.canonical_bytes(), source="a peer") == manifest
    assert manifest_from_tables(preset_tables("small"), source="small").strategy.segment_elements_max == 1 << 20


def messages(plan: OuterPlan) -> dict[str, int]:
    """Bytes of what names every segment, each encoded and decoded again."""
    n, results = len(plan.segments), (HASH,) * (len(plan.segments) * plan.num_passes)
    share = Contribution(PEER, PhaseId(1), RoundIndex(1), 1, 1, HASH)
    found = {}
    for message in (
        Propose(RoundIndex(1), Attempt(1), HASH, HASH, (share,), (SIGNED,), (), (0,) * n, 0, 0, 1, (), ()),
        ResultHashes(RoundIndex(1), Attempt(1), results),
    ):
        data = PEER_MESSAGES.encode(message)
        assert PEER_MESSAGES.decode(data) == message
        found[type(message).__name__] = len(data)
    for local in (ContributionFormed(1, 1, True, "", (HASH,) * n, 0.0, 0.0, 0.0), plan.described()):
        data = LOCAL_MESSAGES.encode(local)
        assert LOCAL_MESSAGES.decode(data) == local
        found[type(local).__name__] = len(data)
    entry = Entry(RunId("r"), RoundIndex(1), HASH, HASH, (share,), results, 0, 0, 1, (), ())
    data = encode_entry(SignedEntry(entry, (SIGNED,), (SignedVote(PEER, Attempt(1), 1, SIGNED),)))
    assert decode_entry(data).entry == entry
    found["Entry"] = len(data)
    return found


@pytest.mark.parametrize(("size", "lowrank_r"), [*((size, r) for size in SIZES for r in (0, 256)), ("107B", 2048)])
def test_every_message_of_a_round_takes_its_segments(size: str, lowrank_r: int) -> None:
    assert max(messages(make_plan(run_of(size, lowrank_r))).values()) < 256 * 1024
