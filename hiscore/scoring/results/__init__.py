"""From hidden states to scores."""
