"""The machine that agrees on one outer step after the other (protocol/06-rounds.md)."""
