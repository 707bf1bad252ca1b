"""Trainers on a node: what a rank there moves, and the process on the head that stands for its stage."""
