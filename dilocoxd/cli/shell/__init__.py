"""How the command line meets its user: which commands there are, help in groups, what the shell completes."""
