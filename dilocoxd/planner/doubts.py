"""What a site's operator may write, but hardly means: found by `dilocoxd check-config` before anything starts. Pure."""

from collections.abc import Iterator
from typing import Final

from dilocoxd.config.footprint.counts import counted
from dilocoxd.config.footprint.estimate import site_estimate
from dilocoxd.config.footprint.shape import shape_of
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.site import SiteConfig

TOKENS_FACTOR: Final = 4
PEERS_MANY: Final = 128
SNAPSHOTS_MANY: Final = 100
VALIDATION_MANY: Final = 10_000
PAYLOAD_ROUNDS_MANY: Final = 1_000_000
_GIB: Final = 1 << 30


def site_doubts(site: SiteConfig) -> Iterator[str]:
    """One sentence each: what, which value, what to do."""
    yield from site.api.warnings()
    rounds = site.storage.payload_rounds_max
    if rounds > PAYLOAD_ROUNDS_MANY and not site.storage.payload_bytes_max:
        yield (
            f"storage.payload_rounds_max = {rounds} keeps payloads until the disk is full; lower it, or set"
            " storage.payload_bytes_max"
        )


def manifest_doubts(manifest: Manifest, memory_bytes: int) -> Iterator[str]:
    """`memory_bytes`: of this machine."""
    limits, honest = manifest.round, manifest.claimed_steps_max * manifest.largest_inner_step
    if limits.tokens_max > TOKENS_FACTOR * honest:
        yield (
            f"round.tokens_max = {limits.tokens_max} lets a liar weigh {limits.tokens_max // max(1, honest)} times what"
            f" the longest phase holds ({honest} tokens); use 0, which is that"
        )
    if limits.peers_max > PEERS_MANY:
        inbox = limits.peers_max * counted(manifest, shape_of(manifest, None)).payload_bytes / _GIB
        yield (
            f"round.peers_max = {limits.peers_max} makes room for that many payloads, {inbox:.1f} GiB at every site if"
            " so many come; lower it to what you expect"
        )
    if manifest.snapshot.keep > SNAPSHOTS_MANY:
        yield f"snapshot.keep = {manifest.snapshot.keep} keeps that many whole models on every disk; a few are enough"
    if manifest.data.validation_sequences > VALIDATION_MANY:
        yield (
            f"data.validation_sequences = {manifest.data.validation_sequences} makes every evaluation long at every"
            " site; some hundreds are enough"
        )
    if (needed := site_estimate(manifest, None).node_bytes) > memory_bytes:
        yield (
            f"model.hidden_size = {manifest.model.hidden_size} and the other sizes make a model that wants"
            f" {needed / _GIB:.1f} GiB of a site, and this machine has {memory_bytes / _GIB:.1f} GiB; use a smaller"
            " model, or a larger machine"
        )
