"""Commands about the trained model: export, generate, evaluate."""
