"""Real trainer processes."""
