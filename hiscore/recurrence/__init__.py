"""Layers whose tokens see a state of fixed size in place of the tokens before them."""
