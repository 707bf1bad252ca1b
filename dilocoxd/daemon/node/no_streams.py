"""A node has no libp2p: where there is no data connection its head sends."""

from typing import NoReturn

from dilocoxd.errors import PeerError
from dilocoxd.ids import PeerId


class NotReached(PeerError):
    """There is no data connection to this site from here, and nothing was sent."""


class NoStreams:
    """Implements StreamOpener."""

    async def open_stream(self, peer: PeerId, protocol: str, *, timeout_s: float = 10.0) -> NoReturn:
        """See StreamOpener. Raises NotReached."""
        raise NotReached(f"no data connection from this node to {peer}")
