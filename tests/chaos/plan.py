"""The seeded plan of faults: what is done to which site, when, and for how long. Pure; the same seed, the same plan."""

import random
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["kill_site", "kill_daemon", "kill_worker", "freeze", "cut", "cut_pair", "unplug", "wipe"]
WEIGHTS: Final[dict[Kind, int]] = {
    "kill_site": 10,
    "kill_daemon": 6,
    "kill_worker": 18,
    "freeze": 20,
    "cut": 18,
    "cut_pair": 12,
    "unplug": 10,
    "wipe": 6,
}
WORKERS: Final = ("outer", "trainer", "p2pd")
GAP_S: Final = (2.0, 8.0)
SECONDS: Final[dict[Kind, tuple[float, float]]] = {
    "kill_site": (0.5, 10.0),
    "kill_daemon": (0.5, 6.0),
    "kill_worker": (0.0, 0.0),
    "freeze": (2.0, 15.0),
    "cut": (3.0, 25.0),
    "cut_pair": (3.0, 25.0),
    "unplug": (2.0, 15.0),
    "wipe": (0.5, 5.0),
}
"""How long it lasts; then it is undone (a killed site is started again)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One intended fault. If the site cannot take it then, the next one that can is taken."""

    at_s: float
    kind: Kind
    site: int
    seconds: float
    other: int
    """cut_pair: the site that it does not reach any more."""
    worker: str
    """kill_worker: which."""


def make_plan(seed: int, seconds: float, num_sites: int) -> list[Fault]:
    """Faults in order of time."""
    rng = random.Random(seed)
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    plan: list[Fault] = []
    at_s = rng.uniform(*GAP_S)
    while at_s < seconds:
        kind = rng.choices(kinds, weights)[0]
        site = rng.randrange(num_sites)
        other = (site + rng.randrange(1, num_sites)) % num_sites
        plan.append(Fault(at_s, kind, site, rng.uniform(*SECONDS[kind]), other, rng.choice(WORKERS)))
        at_s += rng.uniform(*GAP_S)
    return plan
