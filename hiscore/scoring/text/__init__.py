"""Text of scoring calls: encoding plans, labels, pairs."""
