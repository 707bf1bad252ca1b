"""Real daemons as processes: their run directories, networks, faults, and what they were seen to do."""
