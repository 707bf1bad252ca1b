"""How answers look: JSON in small steps, tags for the next poller, one shape for every refusal."""
