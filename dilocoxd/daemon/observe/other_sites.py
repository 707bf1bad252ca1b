"""What the other sites did when, as far as it can be seen from here: what they say of themselves, silence, exchanges.

Bounded; read by GET /v1/timeline/sites.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from dilocoxd.answers.history import SiteSpan, SiteTimeline

SITES_KEPT: Final = 128
SPANS_KEPT: Final = 1000
GAP_S: Final = 5.0
"""Looks that are further apart than this leave a gap: nobody looked."""


class OthersTimeline:
    """Spans of each other site."""

    def __init__(self) -> None:
        self._sites: OrderedDict[str, deque[SiteSpan]] = OrderedDict()
        self._states: dict[str, SiteSpan] = {}

    def add(self, peer: str, span: SiteSpan) -> None:
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
            span = self._states[peer] = SiteSpan(kind, now, now, None)
            self.add(peer, span)

    def since(self, since: float, name_of: Callable[[str], str]) -> list[SiteTimeline]:
        """Sites with the spans that ended after `since`."""
        return [
            SiteTimeline(
                peer_id=peer, name=name_of(peer), is_self=False, spans=[span for span in spans if span.end > since]
            )
            for peer, spans in self._sites.items()
        ]
