"""What is known of token stores without opening a shard: their index, and which of their files are here."""
