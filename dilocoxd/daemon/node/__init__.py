"""What `dilocoxd node` runs: places for outer parts of a site whose daemon is on another machine."""
