"""Unit tests of machines/exchange."""
