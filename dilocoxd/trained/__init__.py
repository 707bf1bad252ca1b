"""The trained model outside of training: found on disk, exported for other tools, asked for text, measured."""
