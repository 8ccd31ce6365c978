"""Wishes of a caller of `decode`: sampling parameters, grammars, stop strings."""
