"""What goes onto the import path of sites in containers, so that their trainers leave CPU to the other tests."""
