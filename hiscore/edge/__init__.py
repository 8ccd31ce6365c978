"""The edge to Triton's Python backend: tensors in, tensors or errors out, and metrics."""
