"""Several real sites: rounds, faults, forks, the API."""
