"""Resources that the processes of one server share: memory claimed in the open, weights, progress, load."""
