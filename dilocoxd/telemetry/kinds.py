"""All types of events: what records, screens and docs are made from."""

from dilocoxd.telemetry import catalogue, cluster, suspicions
from dilocoxd.telemetry.catalogue import Event


def event_types() -> list[type[Event]]:
    """Every type there is, by name."""
    # Not __subclasses__: `slots` makes dataclass build each class twice, and both are in that list.
    found = {
        kind
        for module in (catalogue, cluster, suspicions)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
    }
    return sorted(found, key=lambda kind: kind.name)
