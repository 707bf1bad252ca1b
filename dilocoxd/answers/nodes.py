"""What GET /v1/status says of further machines of a site (docs/cluster.md), and the same in words."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from dilocoxd.answers.fields import Count, Unix, told
from dilocoxd.answers.words import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePart:
    """An outer part that runs on a node."""

    part: Annotated[Count, told("Its number among all outer parts of the site.")]
    node: Annotated[
        str, told("Name and address of the machine that runs it, or ran it last; empty: none did yet. Untrusted.")
    ]
    state: Annotated[Literal["starting", "waiting", "running"], told("waiting: no node is there that could run it.")]
    since: Unix


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """What the head knows of its nodes."""

    parts: tuple[NodePart, ...]
    free_places: Annotated[Count, told("Places on connected nodes that no part has taken.")]
    refused: Annotated[
        Count, told("Connections that were closed because they did not show the node key and this version.")
    ]
    refused_from: Annotated[str, told("Address of the one that was refused last; empty: none was.")]


def nodes_in_words(nodes: Nodes | None) -> str:
    """How it stands with them, in a line; empty: there are none."""
    if nodes is None:
        return ""
    running = [each for each in nodes.parts if each.state == "running"]
    where = ", ".join(dict.fromkeys(each.node for each in running))
    parts = [f"{len(running)} of {plural(len(nodes.parts), 'outer part')} running{f' on {where}' if where else ''}"]
    parts += [f"{plural(nodes.free_places, 'free place')}"] if nodes.free_places else []
    refused = f"{plural(nodes.refused, 'connection')} refused, the last from {nodes.refused_from}"
    return "; ".join([*parts, *([refused] if nodes.refused else [])])


def node_wait(nodes: Nodes | None) -> str:
    """Which part waits for which machine, since when, and what to do, as the end of "waits for"; empty: none does.

    The same while nothing changes, so that it is told once.
    """
    waiting = [each for each in nodes.parts if each.state == "waiting"] if nodes is not None else []
    if nodes is None or not waiting:
        return ""
    refused = (
        f"; a connection from {nodes.refused_from} was refused: the node key or the version there is another one"
        if nodes.refused_from
        else ""
    )
    return f"{'; '.join(map(_wait, _by_node(waiting)))}{refused}"


def _by_node(waiting: Sequence[NodePart]) -> list[list[NodePart]]:
    """Those that ran on one node together, in order."""
    found: dict[str, list[NodePart]] = {}
    for each in waiting:
        found.setdefault(each.node, []).append(each)
    return list(found.values())


def _wait(parts: Sequence[NodePart]) -> str:
    which = f"outer part {', '.join(str(each.part) for each in parts)}"
    since = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(min(each.since for each in parts)))
    if parts[0].node:
        return f"the node {parts[0].node} with {which}, gone since {since}: start `dilocoxd node` there"
    return f"a machine for {which} since {since}: start `dilocoxd node` on one"
