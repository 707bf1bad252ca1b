"""Drives machines/round: events in, commands carried out in order."""
