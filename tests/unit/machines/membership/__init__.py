"""Unit tests of machines/membership."""
