"""A scoring call from text or token ids to scores: request, packing, prefix cache, scorer."""
