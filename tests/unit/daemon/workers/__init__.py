"""Unit tests of daemon/workers."""
