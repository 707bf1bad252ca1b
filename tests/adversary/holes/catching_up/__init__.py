"""Mends taken away from a daemon, as patches: each module has `apply()`."""
