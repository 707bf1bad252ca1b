"""The outer parts of a site that run on nodes: how they are numbered, called, and let in."""

import hashlib
import secrets
import uuid
from collections.abc import Sequence

from dilocoxd.answers.nodes import Nodes
from dilocoxd.daemon.head.door import NodeDoor
from dilocoxd.daemon.head.last_nodes import LastNodes
from dilocoxd.daemon.head.place import NodePlace, PartAway
from dilocoxd.daemon.site.interface import SiteSettings
from dilocoxd.daemon.workers.fork_server import ForkServer
from dilocoxd.errors import ConfigError, StoreError
from dilocoxd.ipc.sealed import KEY_BYTES, read_node_key
from dilocoxd.store.admission import write_secret
from dilocoxd.store.rundir import RunDir
from dilocoxd.wire.placement import OuterPart


def parts_of(here: int, away: int) -> list[OuterPart]:
    """All parts, where so many are on this machine and each further one has buffers and files of its own."""
    total = here + away
    ours = [OuterPart(index, total, 0, away) for index in range(here)]
    return ours + [OuterPart(index, total, index, total - index - 1) for index in range(here, total)]


def make_door(settings: SiteSettings) -> NodeDoor:
    """Where nodes come in; the key is made if there is none. Raises ConfigError."""
    path = settings.run_directory / settings.node_key_file
    if not path.exists():
        try:
            write_secret(path, secrets.token_hex(KEY_BYTES))
        except StoreError as error:
            raise ConfigError(f"cluster.key_file = {settings.node_key_file}: {error}") from error
    host, port = settings.node_address
    return NodeDoor(host, port, read_node_key(path), uuid.uuid4().hex)


def places_on_nodes(settings: SiteSettings, door: NodeDoor, fork_server: ForkServer) -> list[NodePlace]:
    """Of the parts that run on nodes, in order."""
    total = settings.outer_parts + settings.node_parts
    # Nodes keep files of a part under this name: of the site, not of its folder.
    site = hashlib.sha256(settings.peer_id.encode() + (settings.run_directory / "run.toml").read_bytes()).hexdigest()
    served = {index: f"{site[:16]}.part{index}of{total}" for index in range(settings.outer_parts, total)}
    run_dir, key_path = RunDir(settings.run_directory), settings.run_directory / settings.node_key_file
    last_nodes = LastNodes(run_dir.last_nodes, served.values())
    return [
        NodePlace(door, fork_server, PartAway(index, name, key_path, run_dir.feedback), last_nodes)
        for index, name in served.items()
    ]


def nodes_seen(door: NodeDoor, places: Sequence[NodePlace]) -> Nodes:
    """For people."""
    return Nodes(
        parts=tuple(place.seen for place in places),
        free_places=door.num_waiting,
        refused=door.refused,
        refused_from=door.refused_from,
    )
