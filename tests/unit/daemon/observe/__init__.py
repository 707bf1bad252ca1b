"""Unit tests of daemon/observe."""
