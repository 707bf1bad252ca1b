"""Audits of results: which segments a site checks, what it needs for that, and what follows. Pure (rule X13)."""
