"""Unit tests of machines/phase."""
