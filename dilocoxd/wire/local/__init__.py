"""What the daemon and its workers say to each other on the local socket."""
