"""Models in and out, measured over all families."""
