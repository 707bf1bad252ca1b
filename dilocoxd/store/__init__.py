"""Files of a run directory: layout, lock, atomic writes, log, snapshots."""
