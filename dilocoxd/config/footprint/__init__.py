"""What a run weighs at a site: one estimate of memory and disk, which every command and the daemon read."""
