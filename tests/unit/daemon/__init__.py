"""Unit tests of the daemon's parts."""
