"""Prompts from what callers send: templates, and token ids in which no caller's text forms a special token."""
