"""`dilocoxd doctor`: what usually goes wrong, and what to do about it."""
