"""For training loops of somebody's own: what a torch module looks like to a run, and a place in that run's rounds."""
