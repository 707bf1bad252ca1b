"""This site's copy of the shared state machine, and what goes to disk with it."""
