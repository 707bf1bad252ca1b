"""What happens to simulated peers: by chance from a seed, or directed to one moment."""
