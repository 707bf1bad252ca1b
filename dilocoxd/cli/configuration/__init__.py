"""Rooms: what is configured at a site, where each value comes from, and changing it in place."""
