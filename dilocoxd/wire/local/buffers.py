"""Names of the shared buffers (memfds) of a site, and what lies in each (docs/internals.md section 4)."""

from dataclasses import dataclass
from typing import Annotated

from dilocoxd.wire.codec import Length, Name, Uint

ANCHOR = "anchor"
"""float32[numel]: shared parameters x_k. Written by the outer worker only, read by trainers."""
MOMENTUM = "momentum"
"""float32[numel * slots]: state of the outer optimizer."""
PHASE = "phase"
"""float32[numel]: the base anchor while a phase trains; trainers subtract their parameters in place at the boundary, so
that it becomes the pseudo-gradient u = base - params; free again once the contribution is formed."""
FEEDBACK = "feedback"
"""float32[numel]: error feedback e; while a contribution is in flight d = beta e + u itself."""
OWNER_FEEDBACK = "owner_feedback"
"""float32[numel], sparse: residual of results this site encoded as owner."""
MEMORY = "memory"
"""What else the shared state holds: where the schedule stands, and what the last result leaves to the next round.

Two headers come first; that of state k lies at k % 2 times HEADER_BYTES."""
HEADER_BYTES = 1024
"""Of one header in MEMORY (outerworker/schedule_memory.py)."""
LEFT_OUT = "left_out"
"""Sparse: what to add to the anchor, so that one contribution was not counted in the segments that are summed here,
float32[numel]; behind it where it is from (wire/local/left_out.py). Trainers measure what that does to the loss."""
UNDO = "undo"
"""One segment of everything an update changes in place, so that a SIGKILL in the middle can be redone."""
JOURNAL = "journal"
"""4096 bytes: which state the buffers hold and how far an in-place update came."""
FIGURES = "figures"
"""A record for each segment (wire/local/figures.py): squares of what was formed, hashes of what the state has."""
OUTBOX = "outbox"
"""Own encoded payload: all passes, all segments, back to back in (pass, segment) order."""
INBOX = "inbox"
"""Sparse: `slot * payload_bytes_total + offset(pass, segment)` = payload of the contributor in that slot."""
RESULT = "result"
"""Result payload, laid out like the outbox."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Name and size in bytes of one shared buffer that the outer worker needs."""

    name: Name
    size: Uint


@dataclass(frozen=True, slots=True)
class PayloadTable:
    """Payload lengths of entries with this low rank."""

    lowrank_r: Uint
    payload_bytes: Annotated[tuple[tuple[Uint, ...], ...], Length(1, 4)]
    """[pass][segment] in bytes."""
