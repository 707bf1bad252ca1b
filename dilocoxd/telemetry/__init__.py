"""What the daemon tells the outside: typed events and metrics."""
