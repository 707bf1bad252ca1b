"""What a head has for its nodes: the door that they come to, and places for outer parts on them."""
