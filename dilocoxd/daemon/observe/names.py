"""What each site is called, as far as this daemon has heard; read by all that is shown to people.

Decides nothing: a name is for people only (protocol/03-identity.md I10).
"""

from collections import OrderedDict
from typing import Final

from dilocoxd.site_names import in_words, labels_of, short_id

NAMES_KEPT: Final = 4096


class SiteNames:
    """Names by peer id, our own among them; those heard of last are kept."""

    def __init__(self, me: str, own: str) -> None:
        self._me = me
        self._names: OrderedDict[str, str] = OrderedDict({me: own})
        self._labels = labels_of(self._names)

    def is_own(self, site: str) -> bool:
        """This site is called so, by name, short id or peer id."""
        return site in (self._me, short_id(self._me), self.of(self._me), self._names[self._me])

    def learn(self, peer: str, name: str) -> None:
        """A verified record of `peer` says so."""
        if peer == self._me or self._names.get(peer) == name:
            return
        self._names[peer] = name
        if len(self._names) > NAMES_KEPT:
            del self._names[next(known for known in self._names if known != self._me)]
        self._labels = labels_of(self._names)

    def of(self, peer: str) -> str:
        """What to call it."""
        return self._labels.get(peer) or short_id(peer)

    def in_words(self, text: str) -> str:
        """A sentence with names in the place of peer ids."""
        return in_words(text, self.of)
