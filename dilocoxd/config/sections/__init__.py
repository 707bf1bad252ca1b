"""Sections of run.toml and site.toml, by what they are about."""
