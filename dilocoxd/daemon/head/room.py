"""Decides whether a node has room for what it offers to run, and remembers who was not let in. Pure.

What it offers may all be given to it, at any time: another node may be lost. So it is refused when it joins, not once
its memory is full in the middle of a round.
"""

from dataclasses import dataclass
from typing import Final

from dilocoxd.answers.words import plural
from dilocoxd.config.footprint.nodes import NodeNeeds
from dilocoxd.errors import WireError
from dilocoxd.wire.local.node import NodeHello

GIB: Final = 1 << 30
NOT_LET_IN: Final = "not_let_in"
"""Code of what a node is refused for that has shown the key."""


@dataclass(slots=True)
class NotLetIn:
    """Connections that the door closed."""

    count: int = 0
    last_from: str = ""
    """Address of the last one."""
    why: str = ""
    """As it was told, or that it said too little; empty: it did not show the node key, or went at our version."""

    def note(self, host: str, error: Exception) -> None:
        """One more, for this."""
        self.count, self.last_from = self.count + 1, host
        self.why = error.detail if isinstance(error, WireError) and error.code == NOT_LET_IN else ""
        if isinstance(error, TimeoutError):
            self.why = "it did not say who it is in time; it is no node, or one that hangs: start that again"


def why_no_room(hello: NodeHello, who: str, needs: NodeNeeds, torch: str = "") -> str:
    """One sentence: which node, what it would hold, what it has, what to do; empty: it has room, or does not say.
    `torch`: the head's release; empty: not known."""
    if hello.torch and torch and hello.torch != torch:
        return (
            f"the node {who} has torch {hello.torch} and this head {torch}, which may neither understand each other nor"
            " compute the same bits; install the same release on both"
        )
    offered = [
        *([plural(hello.num_parts, "outer part")] if hello.num_parts else []),
        *([plural(hello.num_stages, "pipeline stage")] if hello.num_stages else []),
    ]
    offers = f"the node {who} offers room for {' and '.join(offered)}"
    return _no_use(hello, offers, needs) or _no_memory(hello, offers, needs) or _no_gpus(hello, offers, needs)


def _no_use(hello: NodeHello, offers: str, needs: NodeNeeds) -> str:
    """All that it offers waited for ever, beside a head that told its operator to start a node."""
    is_known, says_so = needs.num_parts or needs.stage_bytes, hello.num_parts or hello.num_stages
    is_of_use = (hello.num_parts and needs.num_parts) or (hello.num_stages and needs.stage_bytes)
    if not is_known or not says_so or is_of_use:
        return ""
    other = "--stages" if needs.stage_bytes else "--parts"
    return (
        f"{offers}, but cluster.outer_parts = {needs.num_parts} and cluster.stages = {len(needs.stage_bytes)} at this"
        f" head: nothing of that would ever run there; start it with {other}, or change site.toml of the head and start"
        " that again"
    )


def _no_memory(hello: NodeHello, offers: str, needs: NodeNeeds) -> str:
    needed = needs.main_bytes(hello.num_parts, hello.num_stages)
    if not 0 < hello.memory_bytes < needed:
        return ""
    return (
        f"{offers}, which hold at least {needed / GIB:.2f} GiB of main memory, but {hello.memory_bytes / GIB:.2f} GiB"
        " were free there when it started; start it with fewer --parts or --stages, end what else runs there, or use a"
        " machine with more memory"
    )


def _no_gpus(hello: NodeHello, offers: str, needs: NodeNeeds) -> str:
    num_stages = min(hello.num_stages, len(needs.stage_bytes))
    if num_stages and 0 < hello.gpu_bytes < needs.gpu_bytes:
        return (
            f"{offers}, whose trainers hold at least {needs.gpu_bytes / GIB:.2f} GiB on a GPU each, but its smallest"
            f" GPU has {hello.gpu_bytes / GIB:.2f} GiB; use more parallel.pipeline, parallel.shard or parallel.tensor"
            " at the head, or a machine with larger GPUs"
        )
    if 0 < hello.num_gpus < num_stages * needs.stage_gpus:
        return (
            f"{offers}, and each has {plural(needs.stage_gpus, 'trainer')} with a GPU of its own, but"
            f" {plural(hello.num_gpus, 'GPU')} {'is' if hello.num_gpus == 1 else 'are'} there; start it with fewer"
            " --stages, or lower parallel.shard, parallel.replicate or parallel.tensor at the head"
        )
    return ""
