"""Models in: a directory of a Hugging Face model becomes shared state 0 of a run."""
