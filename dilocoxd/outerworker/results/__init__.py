"""Results of an entry, where they lie, and how much of a contribution they counted."""
