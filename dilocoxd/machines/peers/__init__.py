"""What one peer knows of each of the others."""
