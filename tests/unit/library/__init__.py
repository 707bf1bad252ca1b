"""Tests of dilocoxd/library."""
