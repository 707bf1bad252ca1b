"""Changes to a daemon's code, made in its process before it starts: each module has `apply()`."""
