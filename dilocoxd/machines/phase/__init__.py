"""The machine of one site's inner phases: trainers, outer worker, owed work."""
