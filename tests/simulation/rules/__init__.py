"""Every rule of protocol/ that can be seen broken from outside, watched in every schedule."""
