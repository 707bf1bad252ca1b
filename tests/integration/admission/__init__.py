"""Who gets into a run of real daemons, and who decides it."""
