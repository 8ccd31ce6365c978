"""The routes, a file per family of wire formats."""
