"""What one exchange will take, by formula: bytes over the link, round trips, codec work, votes.

Used by `dilocoxd plan` before a run and by the status beside what was measured. docs/planning.md says where each
constant comes from and how far the formula was off. Pure arithmetic.
"""

from dataclasses import dataclass
from typing import Final

LINE_SHARE: Final = 0.96
"""Part of a link's rate that payload bytes get on data connections, headers and acknowledgements off."""
ROUND_TRIPS_PER_TURN: Final = 0.75
"""Of contributions, and again of results, however many segments they are: each connection carries one behind the other,
and is still as fast as in the round before. Half is the way; measured on a quiet machine, 4 kB at 100 ms: 0.77."""
TURNS: Final = 2
"""Contributions first, results after them."""
CONNECTIONS_PER_PEER: Final = 8
CONNECTION_WINDOW_BYTES: Final = 2_200_000
"""Bytes under way on one connection, by the kernel's own limits (tcp_wmem of 4 MiB): a plain one moves 26 MB/s at 100
ms. It is that of a data connection as of p2pd's."""
FIXED_S: Final = 0.015
"""Messages and turns of the event loops that nothing changes, with a core for them: 0.012 on a quiet machine."""
SEGMENT_S: Final = 0.25e-3
"""CPU time of an offer, its answer and its receipt, at both ends together."""
MEMORY_BYTES_PER_S: Final = 10.0e9
"""Speed of the plain copy in whose units codecs are measured (docs/benchmarks.md)."""
WEIGHING_COPIES: Final = 6.0
"""Of what an owner sums: norms, products of every two shares, the sum itself. With the codec 2.8 (int4) and 3.3 ns
(int2) a value were measured, of which the codec is 0.4 and 0.7 (docs/lab/benchmarks.md, Compiled loops)."""
VOTE_S_PER_SITE: Final = 1e-4
CODEC_COPIES: Final[dict[str, tuple[float, float]]] = {
    "fp32": (2.3, 1.8),
    "fp16": (2.3, 1.6),
    "bf16": (1.9, 1.6),
    "int8": (1.6, 0.7),
    "int8bins": (10.4, 2.3),
    "int4": (2.3, 1.1),
    "e3m0": (5.7, 3.3),
    "int2": (6.3, 1.5),
    "topk": (5.5, 1.6),
}
"""(encode, decode) of a codec in copies of the same fp32 bytes, on one core, by torch alone."""
COMPILED_COPIES: Final[dict[str, tuple[float, float]]] = {
    "int8": (1.5, 0.6),
    "int4": (0.85, 0.6),
    "int2": (2.1, 0.7),
    "topk": (4.1, 1.8),
}
"""The same by compiled loops, of those that have them (docs/lab/measured.md, codecs)."""


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
    """Of one pass; on data connections none waits for the answer to another."""
    num_passes: int
    codec: str
    num_sites: int
    is_gathered: bool = False
    """Everybody gets all contributions and sums them itself."""
    is_compiled: bool = False
    """Codecs work by their compiled loops (ADR 38)."""


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
    hidden_s: float
    """What is computed while the line is busy, or carried while something is computed: in two parts, once in time."""

    @property
    def total_s(self) -> float:
        """From the boundary to the commit."""
        return self.exchange_s + self.encode_s + self.vote_s

    @property
    def exchange_s(self) -> float:
        """From the group being known to all results being here: `times.exchange_s` of a round."""
        return self.transfer_s + self.latency_s + self.reduce_s + self.decode_s + self.fixed_s - self.hidden_s


def copies_of(codec: str, *, is_compiled: bool) -> tuple[float, float]:
    """(encode, decode) in copies of the same fp32 bytes, on one core."""
    return COMPILED_COPIES.get(codec, CODEC_COPIES[codec]) if is_compiled else CODEC_COPIES[codec]


def bytes_each_way(payload_bytes: int, num_sites: int, *, is_gathered: bool = False) -> float:
    """Bytes that pass a site's link in one exchange, up and down alike: its shares, and the results it owns; where
    everything is gathered its whole contribution, once to each other site."""
    return payload_bytes * (num_sites - 1) * (1.0 if is_gathered else 2 / num_sites)


def exchange_cost(work: ExchangeWork, link: Link) -> ExchangeCost:
    """The parts of one exchange of `work` over `link`; all zero for one site, which exchanges nothing."""
    others = work.num_sites - 1
    if others < 1:
        return ExchangeCost(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    copy_s = 4 * work.parameters / MEMORY_BYTES_PER_S
    encode, decode = copies_of(work.codec, is_compiled=work.is_compiled)
    turns, summed = (1, work.num_sites) if work.is_gathered else (TURNS, 1)
    sent = bytes_each_way(work.payload_bytes, work.num_sites, is_gathered=work.is_gathered)
    transfer_s = sent / usable_bytes_per_s(link, others)
    round_trips_s = ROUND_TRIPS_PER_TURN * link.rtt_s * turns * work.num_passes
    pieces = work.num_segments * work.num_passes
    reduce_s, decode_s = summed * (decode + WEIGHING_COPIES + encode / work.num_sites) * copy_s, decode * copy_s
    computed_s = reduce_s + decode_s + SEGMENT_S * pieces
    return ExchangeCost(
        transfer_s=transfer_s,
        # Results follow contributions segment by segment: who is busy all the time waits at its ends only, and what is
        # sent last waits for all round trips, but for what was carried or summed meanwhile.
        latency_s=max(round_trips_s / turns, round_trips_s - max(transfer_s, computed_s) * (1 - 1 / turns)),
        encode_s=encode * copy_s,
        reduce_s=reduce_s,
        decode_s=decode_s,
        vote_s=link.rtt_s + VOTE_S_PER_SITE * work.num_sites,
        fixed_s=FIXED_S + SEGMENT_S * pieces,
        hidden_s=min(transfer_s, computed_s) * (1 - 1 / pieces),  # all but one segment's, at an end
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
