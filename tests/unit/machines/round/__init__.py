"""Unit tests of machines/round."""
