"""The `dilocoxd` command. Exit codes: 0 done, 1 failed, 2 wrong usage, 78 the configuration must be changed."""
