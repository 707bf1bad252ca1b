"""Attacks on a site that catches up: what donors and branches of others may do to it."""
