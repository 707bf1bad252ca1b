"""Real outer worker processes."""
