"""Commands that change a run directory while no daemon runs in it."""
