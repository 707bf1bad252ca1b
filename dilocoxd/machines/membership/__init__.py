"""Who is known, alive, suspect, dead or left; when a starting peer has caught up."""
