"""Section of site.toml about further machines of the site: outer parts and trainers there (docs/cluster.md)."""

from typing import Annotated, Final

from dilocoxd.config.fields import Section, knob

DEFAULT_NODE_PORT: Final = 31340


class ClusterSection(Section):
    """Further machines of this site, each with `dilocoxd node`."""

    outer_parts: Annotated[
        int,
        knob(
            "Parts of the outer worker that run on nodes, besides workers.outer_parts here.",
            unit="processes",
            cost="a round goes on only while the nodes are there; what the parts read and write crosses the network.",
            ge=0,
            le=63,
        ),
    ] = 0
    stages: Annotated[
        int,
        knob(
            "Pipeline stages whose trainers run on nodes, the last ones of parallel.pipeline; each stage on one node.",
            unit="stages",
            cost="training goes on only while the nodes are there; hidden states cross the network in every step,"
            " and at a boundary the stages' parameters.",
            ge=0,
            le=1023,
        ),
    ] = 0
    host: Annotated[
        str,
        knob(
            "Address of this machine that nodes come to, on a network that only they share.",
            unit="IP address",
            cost="whoever has the node key can run a part of this site.",
            min_length=2,
            max_length=64,
        ),
    ] = "127.0.0.1"
    port: Annotated[int, knob("TCP port that nodes come to.", unit="port", cost="none.", ge=1, le=65535)] = (
        DEFAULT_NODE_PORT
    )
    head_grace_s: Annotated[
        float,
        knob(
            "A silent node, as when its cable was cut, is waited for so long: its trainers stay and go on where"
            " they were, its outer parts keep their memory. No longer than half of workers.step_timeout_s for trainers,"
            " and than 5 s where other nodes have room for them. 0: trainers end after 5 s, and a part goes to another"
            " node at once.",
            unit="s",
            cost="trainers of a machine that lost its power end so much later, if no other node has room.",
            ge=0,
            le=3600,
        ),
    ] = 60.0
    is_public: Annotated[
        bool,
        knob(
            "Trainers on nodes may meet at a host of the internet: a firewall keeps strangers from all ports of head"
            " and nodes.",
            unit="switch",
            cost="who reaches those ports can read the model, spoil it, or stop the training.",
        ),
    ] = False
    key_file: Annotated[
        str,
        knob(
            "Key that head and nodes share, relative to the run directory; made at the first start that needs it. Copy"
            " it to every node.",
            unit="path",
            cost="none.",
            min_length=1,
        ),
    ] = "node.key"

    @property
    def has_nodes(self) -> bool:
        """Something of this site runs on other machines."""
        return bool(self.outer_parts or self.stages)
