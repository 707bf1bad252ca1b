"""Limits of a daemon that a test moves."""
