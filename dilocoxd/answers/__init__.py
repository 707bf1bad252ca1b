"""What a site says about itself, as values: all answers of the HTTP API, made in the daemon and in nothing else."""
