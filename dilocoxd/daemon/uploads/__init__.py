"""Payloads that nodes of this site send themselves, as the head orders them."""
