"""Figures of docs/benchmarks.md: measured, kept as JSON, and written into the page."""
