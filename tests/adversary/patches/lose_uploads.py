"""No contribution or result of this site arrives anywhere: its link breaks under load."""

from typing import Any

from dilocoxd.errors import PeerError
from dilocoxd.swarm.streams.bulk import BulkSender


def apply() -> None:
    """Every payload."""

    async def send_segment(self: BulkSender, *arguments: Any, **options: Any) -> None:
        raise PeerError("the link broke")

    BulkSender.send_segment = send_segment  # type: ignore[method-assign]
