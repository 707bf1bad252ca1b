"""Outer workers: the daemon's end of one, one inside the test, several in a swarm."""
