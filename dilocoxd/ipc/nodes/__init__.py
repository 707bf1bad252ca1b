"""What processes that stand for workers on nodes have in common."""
