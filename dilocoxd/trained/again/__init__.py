"""States that are in no snapshot, made again from the log; and what leads to them, held open."""
