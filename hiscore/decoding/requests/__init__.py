"""What a caller of `decode` asks for: sampling parameters, grammars, stop strings."""
