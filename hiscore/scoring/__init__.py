"""A scoring request, from text or token ids to scores: encode, validate, lay out, pack, score."""
