"""Unit tests of daemon/round."""
