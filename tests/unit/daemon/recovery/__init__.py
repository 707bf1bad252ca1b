"""Unit tests of daemon/recovery."""
