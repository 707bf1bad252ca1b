"""Which samples each phase of each site reads: leases that follow from the chain (docs/data.md, ADR 12)."""
