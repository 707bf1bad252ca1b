"""Without a look at the program before it is started."""

from dilocoxd.swarm.p2pd import node


def apply() -> None:
    """Whatever lies there is p2pd."""
    node.check_binary = lambda path: None  # type: ignore[assignment]
