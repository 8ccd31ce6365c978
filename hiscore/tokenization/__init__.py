"""A checkpoint's tokenizer: texts to token ids, in parts and many at a time, and back.

Only `tokenizer` imports transformers, so this file must not import it.
"""
