"""Commands for further machines of a site."""
