"""A scoring request: its layout, options and labels, checked."""
