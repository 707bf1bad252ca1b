"""Without the fence of rule D9: every request of the DHT is worked through."""

from dilocoxd.swarm.p2pd.fence import DhtFence


def apply() -> None:
    """No request is judged."""
    DhtFence.check = lambda self, peer, request: None  # type: ignore[method-assign]
