"""A stage's parameters and the shared flat vectors: how progress is handed in, and how an anchor is taken."""
