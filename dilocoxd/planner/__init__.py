"""What a run will need and yield before it is started, by formula. See docs/planning.md."""
