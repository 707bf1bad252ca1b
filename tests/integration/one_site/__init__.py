"""One whole site: its processes, its stop, its start."""
