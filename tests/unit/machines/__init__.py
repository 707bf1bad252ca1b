"""Unit tests of the sans-io machines."""
