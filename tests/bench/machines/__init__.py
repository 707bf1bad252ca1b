"""Loop time of the machines."""
