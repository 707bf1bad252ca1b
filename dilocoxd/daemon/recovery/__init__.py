"""Drives machines/recovery: questions to peers, steps on our own state."""
