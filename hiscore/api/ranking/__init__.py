"""Ranking and scoring of items for a query, in the wire formats of SGLang, Cohere, TEI and NIM."""
