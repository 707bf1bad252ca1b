"""Tokens per second over thin links: torch's own DDP, and sites of dilocoxd."""
