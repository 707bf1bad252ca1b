"""From a link to a run directory that trains along."""
