"""What the daemon remembers and shows to people."""
