"""What GET /v1/status says of further machines of a site (docs/cluster.md), and the same in words."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from dilocoxd.answers.fields import Count, Unix, told
from dilocoxd.answers.words import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreachedSite:
    """Another site that a node does not reach, so that the head sends to it."""

    peer_id: str
    reason: Annotated[str, told("Why not, in words.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSends:
    """What the node of an outer part sends to other sites itself (network.data = "nodes"), since the daemon started."""

    payloads: Annotated[Count, told("Payloads of the part that went from the node straight to other sites.")]
    bytes: Annotated[Count, told("Of these.")]
    payloads_by_head: Annotated[
        Count,
        told(
            "Payloads of the part that the head tried to send in its place: it did not reach the site, failed or"
            " was not there."
        ),
    ]
    bytes_by_head: Annotated[Count, told("Of these.")]
    reached: Annotated[tuple[str, ...], told("Peer ids of the sites whose data ports it reaches.")]
    unreached: tuple[UnreachedSite, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReceives:
    """What other sites send straight to the node of an outer part (network.data = "nodes"), since the daemon began."""

    payloads: Annotated[Count, told("Contributions to segments of the part that came straight to the node.")]
    bytes: Annotated[Count, told("Of these.")]
    payloads_by_head: Annotated[
        Count,
        told(
            "Contributions to segments of the part that came to the head and were moved to the node: their site does"
            " not reach the node, speaks an older protocol, or the node failed."
        ),
    ]
    bytes_by_head: Annotated[Count, told("Of these.")]
    rejected: Annotated[Count, told("Inputs of other sites that the node refused as bad.")]
    addresses: Annotated[
        tuple[str, ...], told("Where other sites are told that they reach the node; empty: nowhere now.")
    ]
    reason: Annotated[str, told("Why nowhere, in words; empty with addresses.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePart:
    """An outer part that runs on a node."""

    part: Annotated[Count, told("Its number among all outer parts of the site.")]
    node: Annotated[
        str, told("Name and address of the machine that runs it, or ran it last; empty: none did yet. Untrusted.")
    ]
    state: Annotated[Literal["starting", "waiting", "running"], told("waiting: no node is there that could run it.")]
    since: Unix
    sends: Annotated[NodeSends | None, told('null: the head sends all payloads (network.data = "head").')] = None
    receives: Annotated[NodeReceives | None, told("null: the head receives all payloads, likewise.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStage:
    """A pipeline stage whose trainers run on a node."""

    stage: Annotated[Count, told("Its number along the pipeline, from 0 on.")]
    node: Annotated[
        str, told("Name and address of the machine that runs it, or ran it last; empty: none did yet. Untrusted.")
    ]
    state: Annotated[
        Literal["starting", "waiting", "running"],
        told("waiting: no node is there that could run it, or its node is silent and its trainers wait there."),
    ]
    since: Unix


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAside:
    """A node that failed at what it was to run, and is left alone for a while."""

    node: Annotated[str, told("Name and address of the machine. Untrusted.")]
    why: Annotated[str, told("In words, with what to do there. Untrusted.")]
    until: Annotated[Unix, told("When it is tried again; another start of `dilocoxd node` is tried at once.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClock:
    """A node whose clock is not that of the head."""

    node: Annotated[str, told("Name and address of the machine. Untrusted.")]
    ahead_s: Annotated[float, told("Seconds that it was ahead when it last connected; below zero: behind.")]


Place = NodePart | NodeStage


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """What the head knows of its nodes."""

    parts: tuple[NodePart, ...]
    stages: tuple[NodeStage, ...]
    free_places: Annotated[Count, told("Places on connected nodes that no part or stage has taken.")]
    refused: Annotated[
        Count,
        told(
            "Connections that were closed: they did not show the node key and this version, or what their machine has"
            " or offers is not what runs on nodes of this head."
        ),
    ]
    refused_from: Annotated[str, told("Address of the one that was refused last; empty: none was.")]
    lost_address: Annotated[
        str, told("cluster.host, if a node is missed and this machine has that address no more; empty otherwise.")
    ] = ""
    refused_why: Annotated[
        str, told("Why that one was, as it was told; empty: it did not show the node key, or has another version.")
    ] = ""
    aside: Annotated[
        tuple[NodeAside, ...],
        told("Nodes that answered nothing or whose disk is full, and that are left alone for that, or were just now."),
    ] = ()
    clocks: Annotated[tuple[NodeClock, ...], told("Nodes whose clocks were off by more than 30 s when they came.")] = ()


def nodes_in_words(nodes: Nodes | None) -> str:
    """How it stands with them, in a line; empty: there are none."""
    if nodes is None:
        return ""
    parts = [_running(nodes.parts, "outer part")] if nodes.parts or not nodes.stages else []
    parts += [_running(nodes.stages, "pipeline stage")] if nodes.stages else []
    parts += [f"{plural(nodes.free_places, 'free place')}"] if nodes.free_places else []
    parts += [sent] if (sent := _sent(nodes.parts)) else []
    parts += [received] if (received := _received(nodes.parts)) else []
    refused = (
        f"{plural(nodes.refused, 'connection')} refused, the last from {nodes.refused_from}: {_why_refused(nodes)}"
    )
    clocks = [_clock(each) for each in nodes.clocks]
    return "; ".join([*parts, *([refused] if nodes.refused else []), *asides_in_words(nodes), *clocks])


def _clock(clock: NodeClock) -> str:
    how = f"{abs(clock.ahead_s):,.0f} s {'ahead of' if clock.ahead_s > 0 else 'behind'} this machine's"
    return (
        f"the clock of the node {clock.node} was {how} when it came: let NTP set both, for by clocks nodes are"
        ' believed (network.data = "nodes"), then start `dilocoxd node` there again'
    )


def asides_in_words(nodes: Nodes) -> list[str]:
    """Of each node that is left alone why, and what to do. The same while nothing changes."""
    return [_left_alone(each.node, each.why) for each in nodes.aside]


def _left_alone(node: str, why: str) -> str:
    return f"the node {node} is left alone for a while: {why}"


def _sent(parts: Sequence[NodePart]) -> str:
    """What nodes send to other sites themselves; empty: nothing."""
    sends = [each.sends for each in parts if each.sends is not None]
    if not sends:
        return ""
    payloads, by_head = sum(each.payloads for each in sends), sum(each.payloads_by_head for each in sends)
    unreached = len({site.peer_id for each in sends for site in each.unreached})
    some = f", {plural(unreached, 'site')} not reached by all" if unreached else ""
    return f"{plural(payloads, 'payload')} sent by nodes, {by_head:,} in their place by the head{some}"


def _received(parts: Sequence[NodePart]) -> str:
    """What comes to nodes straight from other sites; empty: nothing."""
    receives = [each.receives for each in parts if each.receives is not None]
    if not receives:
        return ""
    payloads, by_head = sum(each.payloads for each in receives), sum(each.payloads_by_head for each in receives)
    rejected = sum(each.rejected for each in receives)
    some = f", {plural(rejected, 'bad input')} refused" if rejected else ""
    return f"{plural(payloads, 'payload')} received by nodes, {by_head:,} in their place by the head{some}"


def _running(places: Sequence[Place], what: str) -> str:
    running = [each for each in places if each.state == "running"]
    where = ", ".join(dict.fromkeys(each.node for each in running))
    return f"{len(running)} of {plural(len(places), what)} running{f' on {where}' if where else ''}"


def node_wait(nodes: Nodes | None) -> str:
    """What waits for which machine, since when, and what to do, as the end of "waits for"; empty: nothing does.

    The same while nothing changes, so that it is told once.
    """
    places: list[Place] = [*nodes.parts, *nodes.stages] if nodes is not None else []
    waiting = [each for each in places if each.state == "waiting"]
    if nodes is None or not waiting:
        return ""
    moved = (
        f"; this machine has cluster.host = {nodes.lost_address} no more: give it back that address, or give the new"
        " one there and to each `dilocoxd node`, and start this site again"
        if nodes.lost_address
        else ""
    )
    refused = (
        f"; a connection from {nodes.refused_from} was refused: {_why_refused(nodes)}" if nodes.refused_from else ""
    )
    asides, groups = {each.node: each.why for each in nodes.aside}, _by_node(waiting)
    told = [_wait(group, asides.pop(group[0].node, "")) for group in groups]
    others = [_left_alone(node, why) for node, why in asides.items()]
    return f"{'; '.join(told)}{moved}{refused}{''.join(f'; {each}' for each in others)}"


def _why_refused(nodes: Nodes) -> str:
    """Of the last one."""
    return nodes.refused_why or "the node key or the version there is another one"


def _by_node(waiting: Sequence[Place]) -> list[list[Place]]:
    """Those that ran on one node together, in order."""
    found: dict[str, list[Place]] = {}
    for each in waiting:
        found.setdefault(each.node, []).append(each)
    return list(found.values())


def _wait(places: Sequence[Place], why: str) -> str:
    """`why`: their node is left alone for that; empty: it is gone."""
    parts = ", ".join(str(each.part) for each in places if isinstance(each, NodePart))
    stages = ", ".join(str(each.stage) for each in places if isinstance(each, NodeStage))
    which = " and ".join([*([f"outer part {parts}"] if parts else []), *([f"stage {stages}"] if stages else [])])
    since = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(min(each.since for each in places)))
    if why:
        return f"the node {places[0].node} with {which}, left alone since {since}: {why}"
    if places[0].node:
        return f"the node {places[0].node} with {which}, gone since {since}: start `dilocoxd node` there"
    return f"a machine for {which} since {since}: start `dilocoxd node` on one"
