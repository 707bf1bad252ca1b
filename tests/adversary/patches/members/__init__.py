"""Daemons whose word about rounds or memberships is a lie."""
