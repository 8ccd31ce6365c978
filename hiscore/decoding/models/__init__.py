"""How decode runs each kind of attention: grouped queries (GQA) and latents (MLA)."""
