"""What happened in a run, worked out again from what it left on disk."""
