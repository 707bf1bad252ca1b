"""Unit tests of daemon/chain."""
