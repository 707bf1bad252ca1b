"""Programs that a site starts: what runs if one of them is another's."""
