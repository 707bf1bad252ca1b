"""Child processes of a site: started, watched, spoken to, ended."""
