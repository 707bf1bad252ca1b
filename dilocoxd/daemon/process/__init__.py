"""The daemon as a process: opening a run, signals, service manager, loop."""
