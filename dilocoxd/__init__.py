"""Fault-tolerant peer-to-peer training daemon for large language models."""

__version__ = "0.1.0"
