"""Decides what a site is called: its own name, what of it others may be shown, and the one short form of a peer id.

A name is what a stranger says about itself: it names no key and no right, so it is short, of a few plain characters,
and never shown alone where two sites share it (protocol/03-identity.md I10). Pure.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

NAME_CHARS_MAX: Final = 32
SHORT_CHARS: Final = 6
"""Of a peer id. Its end, because all of them begin alike; 58**6 of them are told apart."""

_NAME: Final = re.compile(rf"[A-Za-z0-9](?:[A-Za-z0-9._-]{{0,{NAME_CHARS_MAX - 2}}}[A-Za-z0-9])?")
_PEER_ID: Final = re.compile(r"(?<![1-9A-HJ-NP-Za-km-z/])(?:Qm|12D3|16Uiu2)[1-9A-HJ-NP-Za-km-z]{40,56}")
"""Of a sentence. Not behind a slash: there it is part of an address, which is copied and must stay whole."""
_REFUSED: Final = re.compile(r"[^A-Za-z0-9._-]+")


def is_site_name(text: str) -> bool:
    """Whether a peer may call itself that: 1 to 32 ASCII letters, digits, dots, dashes, underscores, the ends letters
    or digits. No name (empty text) is fine as well."""
    return text == "" or _NAME.fullmatch(text) is not None


def name_of_host(host: str) -> str:
    """A site name made of a host name; empty if nothing of it can be used.

    >>> name_of_host("gpu box_3.lan.example")
    'gpu-box_3'
    """
    label = _REFUSED.sub("-", host.partition(".")[0])[:NAME_CHARS_MAX].strip("._-")
    return label if is_site_name(label) else ""


def short_id(peer: str) -> str:
    """The one short form of a peer id.

    >>> short_id("QmV3nFQT4Rz4oTBvXxPZrp8RV3iQWbyZAgNPJX42n7s")
    '~X42n7s'
    """
    return "~" + peer[-SHORT_CHARS:]


def labels_of(names: Mapping[str, str]) -> dict[str, str]:
    """What to call each peer (peer id to its own name): the name, with the short id where others have it too or differ
    only in case; the short id alone where there is none."""
    count = Counter(name.lower() for name in names.values() if name)
    return {
        peer: short_id(peer) if not name else name if count[name.lower()] == 1 else name + short_id(peer)
        for peer, name in names.items()
    }


def in_words(text: str, label: Callable[[str], str] = short_id) -> str:
    """A sentence with what sites are called in the place of their peer ids; addresses stay as they are."""
    return _PEER_ID.sub(lambda found: label(found[0]), text)
