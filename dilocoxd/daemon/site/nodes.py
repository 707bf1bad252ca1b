"""The outer parts and pipeline stages of a site that run on nodes: how they are numbered, called, and let in."""

import dataclasses
import hashlib
import secrets
import uuid

from dilocoxd.answers.nodes import Nodes
from dilocoxd.daemon.head.door import NodeDoor
from dilocoxd.daemon.head.last_nodes import LastNodes
from dilocoxd.daemon.head.place import NodePlace, PartAway
from dilocoxd.daemon.head.stage import NodeStagePlace, NodeStages, StageAway
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
    return NodeDoor(host, port, read_node_key(path), uuid.uuid4().hex, settings.node_grace_s, settings.node_needs)


class SiteNodes:
    """Where the workers of a site run: its own machine, and nodes, with the door that they come to."""

    def __init__(self, settings: SiteSettings, fork_server: ForkServer) -> None:
        """Raises ConfigError. The door is there only if something runs on nodes."""
        self.fork_server = fork_server
        """Of this machine."""
        self.door = make_door(settings) if settings.node_parts or settings.node_stages else None
        self.parts: list[NodePlace] = []
        self.stages: list[NodeStagePlace] = []
        if self.door is None:
            return
        total, pipeline = settings.outer_parts + settings.node_parts, settings.num_stages // settings.stage_ranks
        # Nodes keep files under these names: of the site, not of its folder.
        run = (settings.run_directory / "run.toml").read_bytes()
        site = hashlib.sha256(settings.peer_id.encode() + run).hexdigest()[:16]
        parts = {index: f"{site}.part{index}of{total}" for index in range(settings.outer_parts, total)}
        stages = {
            index: f"{site}.stage{index}of{pipeline}" for index in range(pipeline - settings.node_stages, pipeline)
        }
        run_dir, key_path = RunDir(settings.run_directory), settings.run_directory / settings.node_key_file
        # Connections between ranks that were cut for so long may rest for as long again (TCP's growing pauses), and
        # what is silent for longer than a step is a hang.
        grace_s = min(settings.node_grace_s, settings.trainer_silence_min_s / 2)
        last_nodes = LastNodes(run_dir.last_nodes, [*parts.values(), *stages.values()])
        self.parts = [
            NodePlace(self.door, fork_server, PartAway(index, name, key_path, run_dir.feedback), last_nodes)
            for index, name in parts.items()
        ]
        self.stages = [
            NodeStagePlace(
                self.door, fork_server, StageAway(index, name, settings.stage_ranks, key_path, grace_s), last_nodes
            )
            for index, name in stages.items()
        ]

    @property
    def stage_places(self) -> NodeStages | None:
        """Of the trainers that run on nodes; None: all run here."""
        return NodeStages(self.door, self.stages) if self.door is not None and self.stages else None

    async def serve(self) -> None:
        """Let nodes in until cancelled. Raises ConfigError if the address cannot be listened on."""
        if self.door is not None:
            self.door.listen()
            await self.door.serve()

    def stop(self) -> None:
        """Nobody waits for a node any more."""
        if self.door is not None:
            self.door.stop()

    @property
    def seen(self) -> Nodes | None:
        """For people. None: all of the site runs here."""
        if self.door is None:
            return None
        states = [part.seen.state for part in self.parts] + [stage.seen.state for stage in self.stages]
        return Nodes(
            parts=tuple(
                dataclasses.replace(place.seen, sends=place.sends(), receives=place.receives()) for place in self.parts
            ),
            stages=tuple(place.seen for place in self.stages),
            free_places=self.door.num_waiting,
            refused=self.door.refused.count,
            refused_from=self.door.refused.last_from,
            refused_why=self.door.refused.why,
            aside=self.door.aside,
            clocks=self.door.clocks.told,
            lost_address=self.door.lost_address() if "waiting" in states else "",
        )
