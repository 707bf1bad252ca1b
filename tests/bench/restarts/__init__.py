"""How fast a generation of trainers starts."""
