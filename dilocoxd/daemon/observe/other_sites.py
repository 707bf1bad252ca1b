"""What the other sites did when, as far as it can be seen from here: what they say of themselves, silence, exchanges.

Bounded; read by GET /v1/timeline/sites.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any, Final

SITES_KEPT: Final = 128
SPANS_KEPT: Final = 1000
GAP_S: Final = 5.0
"""Looks that are further apart than this leave a gap: nobody looked."""


@dataclass(slots=True)
class OtherSpan:
    """A stretch of time; unix seconds."""

    kind: str
    start: float
    end: float
    round: int | None = None

    def as_json(self) -> dict[str, Any]:
        """One span of GET /v1/timeline/sites."""
        return {"kind": self.kind, "start": self.start, "end": self.end, "round": self.round}


class OthersTimeline:
    """Spans of each other site."""

    def __init__(self) -> None:
        self._sites: OrderedDict[str, deque[OtherSpan]] = OrderedDict()
        self._states: dict[str, OtherSpan] = {}

    def add(self, peer: str, span: OtherSpan) -> None:
        """A span that is over."""
        if peer not in self._sites:
            self._sites[peer] = deque(maxlen=SPANS_KEPT)
            while len(self._sites) > SITES_KEPT:
                gone, _ = self._sites.popitem(last=False)
                self._states.pop(gone, None)
        self._sites[peer].append(span)

    def look(self, peer: str, kind: str, now: float) -> None:
        """The site does `kind` right now: a stretch grows, or a new one begins."""
        last = self._states.get(peer)
        is_continued = last is not None and 0 <= now - last.end < GAP_S
        if last is not None and is_continued:
            last.end = now
        if last is None or not is_continued or last.kind != kind:
            span = self._states[peer] = OtherSpan(kind, now, now)
            self.add(peer, span)

    def as_json(self, since: float) -> list[dict[str, Any]]:
        """Sites with the spans that ended after `since`."""
        return [
            {
                "peer_id": peer,
                "is_self": False,
                "spans": [span.as_json() for span in spans if span.end > since],
            }
            for peer, spans in self._sites.items()
        ]
