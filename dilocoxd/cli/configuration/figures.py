"""What a run weighs at one site, for `dilocoxd check-config`: the planner's figures for links of three speeds."""

from dataclasses import dataclass
from typing import Final

from dilocoxd.config.footprint.shape import shape_of
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.site import SiteConfig
from dilocoxd.machines.exchange.cost import Link, exchange_cost
from dilocoxd.planner.footprint import Footprint, exchange_work, footprint
from dilocoxd.planner.quantities import in_decimal, in_seconds

LINKS_MBIT: Final = (10, 100, 1000)
ROUND_TRIP_S: Final = 0.05
NUM_SITES: Final = 2


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts and bytes of one site; seconds of an exchange of two sites by Mbit/s of their links."""

    parameters: int
    payload_bytes: int
    memory_bytes: int
    """Everything on one node."""
    trainer_bytes: int
    """The fullest stage: what its GPU must hold."""
    disk_bytes: int
    exchange_s: dict[int, float]


def figures(manifest: Manifest, site: SiteConfig | None) -> Figures:
    """The figures at `site`; None: at one whose site.toml says nothing. Raises ConfigError when no site can follow the
    run."""
    weight = footprint(manifest, shape_of(manifest, site, NUM_SITES))
    return Figures(
        parameters=weight.parameters,
        payload_bytes=weight.payload_bytes,
        memory_bytes=weight.node_bytes,
        trainer_bytes=weight.trainer_bytes,
        disk_bytes=weight.disk_bytes,
        exchange_s={mbit: _exchange_s(manifest, weight, mbit * 1e6) for mbit in LINKS_MBIT},
    )


def _exchange_s(manifest: Manifest, weight: Footprint, bit_per_s: float) -> float:
    work = exchange_work(manifest, weight, NUM_SITES)
    return exchange_cost(work, Link(bit_per_s, bit_per_s, ROUND_TRIP_S)).total_s


def rows(found: Figures) -> list[tuple[str, str]]:
    """(name, text) of each fact."""
    times = ", ".join(f"{in_seconds(seconds)} at {mbit} Mbit/s" for mbit, seconds in found.exchange_s.items())
    stage = in_decimal(found.trainer_bytes, "B")
    return [
        ("model", f"{found.parameters:,} parameters"),
        ("memory", f"{in_decimal(found.memory_bytes, 'B')} with all of it on one node; its fullest stage {stage}"),
        ("disk", in_decimal(found.disk_bytes, "B")),
        ("payload", f"{in_decimal(found.payload_bytes, 'B')} a round, each way"),
        (
            "exchange",
            f"{times} ({NUM_SITES} sites, round trip {ROUND_TRIP_S * 1000:g} ms; `dilocoxd plan` for yours)",
        ),
    ]
