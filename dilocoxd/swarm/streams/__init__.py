"""Frames, messages and bulk bytes on libp2p streams (protocol/04-streams.md)."""
