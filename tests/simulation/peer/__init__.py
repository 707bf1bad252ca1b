"""One simulated peer: real machines, simulated worker, disk and neighbours."""
