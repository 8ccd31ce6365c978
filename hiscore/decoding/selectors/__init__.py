"""The selectors in plain torch: which part of the cache is worth attending to."""
