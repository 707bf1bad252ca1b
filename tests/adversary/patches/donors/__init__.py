"""Lies of those that a newcomer catches up from, as patches: each module has `apply()`."""
