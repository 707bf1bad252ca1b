"""Unit tests of machines/recovery."""
