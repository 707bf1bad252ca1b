"""The screen of `dilocoxd peers`: all sites, this one first."""

from collections.abc import Sequence
from typing import Final

from dilocoxd.answers.peers import Peer, Ping, Probation
from dilocoxd.answers.status import Status
from dilocoxd.answers.words import figure, in_bytes, in_time, plural
from dilocoxd.cli.screens.layout import Column, facts, table

HERE: Final = " (here)"


def peers_screen(status: Status, peers: Sequence[Peer], width: int | None) -> str:
    """One line for each site."""
    me = status.progress
    speeds = [me.tokens_per_s, *(peer.tokens_per_s for peer in peers)]
    columns = [
        Column("site", [status.name + HERE, *(peer.name for peer in peers)]),
        Column("state", [_state(status.state, status.probation), *(_state(p.state, p.probation) for p in peers)]),
        Column("outer step", [str(status.height), *(str(peer.height) for peer in peers)], 1, is_number=True),
        Column("behind", [_behind(status), *(_behind(peer) for peer in peers)], 3, is_number=True),
        Column("last round", [_took_part(status.took_part_last_round), *map(_last_round, peers)], 4),
        Column("seen", ["-", *(_ago(peer.last_seen_s) for peer in peers)], 2),
        Column("tok/s", [f"{value:,.0f}" if value is not None else "-" for value in speeds], 1, is_number=True),
        Column("loss", [figure(status.losses.inner), *(figure(peer.inner_loss) for peer in peers)], 5, is_number=True),
        Column("step", [_step(status.phase.step_seconds or None), *(_step(p.step_seconds) for p in peers)], 6),
        Column("link", ["-", *(_speed(peer.link_bytes_per_s) for peer in peers)], 5),
        Column("by", ["-", *(_by(peer) for peer in peers)], 6),
        Column("address", [_first(status.addresses), *(_first(peer.addresses) for peer in peers)], 7),
        Column("peer id", [status.peer_id, *(peer.peer_id for peer in peers)], 8),
    ]
    return table(columns, width)


def ping_screen(found: Ping) -> str:
    """What `dilocoxd ping` prints."""
    ways = {True: "direct", False: "through a relay", None: "the connection was closed meanwhile"}
    return facts(
        [
            ("site", f"{found.name}  {found.peer_id}"),
            ("reached", f"{ways[found.is_direct]}{f', {found.address}' if found.address else ''}"),
            ("latency", f"{1000 * found.round_trip_s:.1f} ms (worst {1000 * found.worst_round_trip_s:.1f} ms)"),
            ("from it", _speed(found.download_bytes_per_s).replace("-", "not measured: no payload of useful size")),
            ("to it", _speed(found.upload_bytes_per_s).replace("-", "not measured: nothing was sent yet")),
            ("clock", f"{found.clock_offset_s:+.2f} s"),
        ],
        None,
    )


def _state(state: str, probation: Probation | None) -> str:
    words = state.replace("_", " ") or "-"
    return f"{words}, {on_probation(probation)}" if probation is not None else words


def on_probation(found: Probation) -> str:
    """Of a site in an open run that does not count in full yet."""
    return f"on probation: {found.rounds_done} of {plural(found.rounds, 'round')}"


def _behind(site: Status | Peer) -> str:
    """This site or another; how far it is ahead is seen where the outer steps are."""
    return str(site.rounds_behind) if site.rounds_behind and site.rounds_behind > 0 else "-"


def _last_round(peer: Peer) -> str:
    """Of a round that we do not have yet nobody here knows."""
    return _took_part(peer.took_part_last_round if peer.rounds_behind >= 0 else None)


def _took_part(answer: bool | None) -> str:
    return "-" if answer is None else "yes" if answer else "no"


def _by(peer: Peer) -> str:
    """What carries payloads to it, and to how many of its nodes we send straight."""
    way = "data" if peer.has_data else "relay" if peer.way == "relay" else "p2pd"
    reached = sum(node.is_reached for node in peer.nodes)
    return f"{way}, {reached} of {plural(len(peer.nodes), 'node')}" if peer.nodes else way


def _ago(seconds: float | None) -> str:
    return f"{in_time(seconds)} ago" if seconds is not None else "-"


def _step(seconds: float | None) -> str:
    return in_time(seconds)


def _speed(bytes_per_s: float | None) -> str:
    return f"{in_bytes(bytes_per_s)}/s" if bytes_per_s else "-"


def _first(addresses: Sequence[str]) -> str:
    return addresses[0] if addresses else "-"
