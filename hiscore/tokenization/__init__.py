"""A checkpoint's tokenizer: texts to token ids, in parts and many at a time, and back.

Only `tokenizer` and `auto_tokenizer` import transformers, so this file must not import it.
"""
