"""The machine that brings a site to the chain of others (protocol/09-catching-up.md)."""
