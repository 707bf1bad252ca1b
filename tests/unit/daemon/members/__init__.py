"""Unit tests of what the daemon shows and decides of members."""
