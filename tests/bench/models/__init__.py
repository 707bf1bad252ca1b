"""Layouts of one model, measured."""
