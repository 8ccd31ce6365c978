"""Models of decode, by kind of attention: grouped queries (GQA) and latents (MLA)."""
