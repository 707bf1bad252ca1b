"""Who owes which segment payload in one attempt (protocol/07-exchange.md)."""
