"""What one exchange will take, by formula: bytes over the link, round trips, codec work, votes.

Used by `dilocoxd plan` before a run and by the status beside what was measured. docs/planning.md says where each
constant comes from and how far the formula was off. Pure arithmetic.
"""

from dataclasses import dataclass
from typing import Final

LINE_SHARE: Final = 0.96
"""Part of a link's rate that payload bytes get on data connections, headers and acknowledgements off."""
ROUND_TRIPS_PER_TURN: Final = 2.35
"""Of contributions, and again of results, however many segments they are: each connection carries one behind the other.
Half is the way there and back, the rest what connections take to be fast. Measured 2.2 and 2.5 at 100 ms."""
TURNS: Final = 2
"""Contributions first, results after them."""
CONNECTIONS_PER_PEER: Final = 8
CONNECTION_WINDOW_BYTES: Final = 2_200_000
"""Bytes under way on one connection, by the kernel's own limits: a plain one moves 26 MB/s at 100 ms."""
FIXED_S: Final = 0.15
"""Messages, hashes and turns of the event loops that no size of payload changes."""
MEMORY_BYTES_PER_S: Final = 10.8e9
"""Speed of the plain copy in whose units codecs are measured (docs/benchmarks.md)."""
VOTE_S_PER_SITE: Final = 1e-4
CODEC_COPIES: Final[dict[str, tuple[float, float]]] = {
    "fp32": (1.9, 1.8),
    "fp16": (1.9, 1.7),
    "bf16": (1.9, 1.7),
    "int8": (1.6, 1.2),
    "int8bins": (16.0, 2.0),
    "int4": (2.6, 1.9),
    "e3m0": (18.5, 2.5),
    "int2": (22.0, 2.5),
    "topk": (21.0, 2.5),
}
"""(encode, decode) of a codec in copies of the same fp32 bytes, on one core."""


@dataclass(frozen=True, slots=True)
class Link:
    """What joins one site to the others. Rates in bit/s, `rtt_s` the round trip to a typical other site."""

    upload_bit_per_s: float
    download_bit_per_s: float
    rtt_s: float


@dataclass(frozen=True, slots=True)
class ExchangeWork:
    """What one exchange moves: one contribution of `payload_bytes` per site, all passes together."""

    parameters: int
    payload_bytes: int
    num_segments: int
    """Of one pass; how many there are costs nothing on data connections."""
    num_passes: int
    codec: str
    num_sites: int
    is_gathered: bool = False
    """Everybody gets all contributions and sums them itself."""


@dataclass(frozen=True, slots=True)
class ExchangeCost:
    """Seconds of the parts of one exchange."""

    transfer_s: float
    latency_s: float
    encode_s: float
    reduce_s: float
    decode_s: float
    vote_s: float
    fixed_s: float

    @property
    def total_s(self) -> float:
        """From the boundary to the commit."""
        return self.exchange_s + self.encode_s + self.vote_s

    @property
    def exchange_s(self) -> float:
        """From the group being known to all results being here: `times.exchange_s` of a round."""
        return self.transfer_s + self.latency_s + self.reduce_s + self.decode_s + self.fixed_s


def bytes_each_way(payload_bytes: int, num_sites: int, *, is_gathered: bool = False) -> float:
    """Bytes that pass a site's link in one exchange, up and down alike: its shares, and the results it owns; where
    everything is gathered its whole contribution, once to each other site."""
    return payload_bytes * (num_sites - 1) * (1.0 if is_gathered else 2 / num_sites)


def exchange_cost(work: ExchangeWork, link: Link) -> ExchangeCost:
    """The parts of one exchange of `work` over `link`; all zero for one site, which exchanges nothing."""
    others = work.num_sites - 1
    if others < 1:
        return ExchangeCost(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    copy_s = 4 * work.parameters / MEMORY_BYTES_PER_S
    encode, decode = CODEC_COPIES[work.codec]
    turns, summed = (1, work.num_sites) if work.is_gathered else (TURNS, 1)
    sent = bytes_each_way(work.payload_bytes, work.num_sites, is_gathered=work.is_gathered)
    return ExchangeCost(
        transfer_s=sent / usable_bytes_per_s(link, others),
        latency_s=ROUND_TRIPS_PER_TURN * link.rtt_s * turns * work.num_passes,
        encode_s=encode * copy_s,
        reduce_s=summed * (decode + encode / work.num_sites) * copy_s,
        decode_s=decode * copy_s,
        vote_s=link.rtt_s + VOTE_S_PER_SITE * work.num_sites,
        fixed_s=FIXED_S,
    )


def usable_bytes_per_s(link: Link, num_peers: int) -> float:
    """Payload bytes per second of a site: its link's rate, or what the windows of its connections let by.

    >>> round(usable_bytes_per_s(Link(1e9, 1e9, 0.1), 1) / 1e6), round(usable_bytes_per_s(Link(1e9, 1e9, 0.3), 1) / 1e6)
    (120, 59)
    """
    line = LINE_SHARE * min(link.upload_bit_per_s, link.download_bit_per_s) / 8
    if not link.rtt_s:
        return line
    return min(line, num_peers * CONNECTIONS_PER_PEER * CONNECTION_WINDOW_BYTES / link.rtt_s)
