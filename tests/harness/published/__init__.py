"""Models as other tools publish them: directories with config.json, safetensors and a tokenizer."""
