"""Who is there, what we serve to them, whether they can reach us."""
