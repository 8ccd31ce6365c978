"""Attention over packed segments: one interface, an implementation for each kind of device."""
