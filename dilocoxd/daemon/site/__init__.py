"""Drives machines/phase: the site's workers, their progress, what is kept on disk."""
