"""What attacks cost honest sites, and what the defences cost them: one row for each attack."""
