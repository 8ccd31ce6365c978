"""Decisions: the probabilities of the options of many questions about one state."""
