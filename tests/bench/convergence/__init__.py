"""Convergence study: what each strategy costs in validation loss and bytes, on a small model and real text."""
