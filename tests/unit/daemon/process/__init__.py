"""Unit tests of daemon/process."""
