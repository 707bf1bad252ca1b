"""What all places of a node have in common."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dilocoxd.daemon.node.uplink import Uplink
from dilocoxd.daemon.workers.fork_server import ForkServer


@dataclass(frozen=True, slots=True)
class Lent:
    """What the node has, as the head is told (wire/local/node.py, NodeHello)."""

    num_parts: int = 0
    num_stages: int = 0
    memory_bytes: int = 0
    gpu_bytes: int = 0
    num_gpus: int = 0
    torch: str = ""


@dataclass(frozen=True, slots=True)
class SlotWorld:
    """Head, key, folder, and how a part is started; `tell` is for the operator."""

    host: str
    port: int
    key: bytes
    directory: Path
    fork_server: ForkServer
    mark: str
    socket_path: Path
    tell: Callable[[str], None]
    uplink: Uplink = field(default_factory=Uplink)
    """To other sites."""
    lent: Lent = Lent()
