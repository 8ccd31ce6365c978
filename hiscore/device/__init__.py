"""The device: copies, captured graphs, numerics, and what happens when it is lost."""
