"""GGUF files converted to Hugging Face style checkpoints."""
