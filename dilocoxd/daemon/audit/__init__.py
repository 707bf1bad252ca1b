"""Audits of results (rule X13): what they need, the driver that makes them, what is told of them."""
