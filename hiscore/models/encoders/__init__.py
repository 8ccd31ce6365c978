"""Encoders with a classification head: a pair of query and item in, its logits out."""
