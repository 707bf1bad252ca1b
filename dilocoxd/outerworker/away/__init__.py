"""Stands on the head for an outer part that runs on a node, and moves what it reads and writes."""
