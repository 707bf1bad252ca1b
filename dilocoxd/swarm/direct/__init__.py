"""Data connections: TCP connections of our own beside p2pd's, for payloads over long fat links."""
