"""Others on the same links."""
