"""Who is who and where: identity, records, hello, gossip, first contact (protocol/05-discovery.md)."""
