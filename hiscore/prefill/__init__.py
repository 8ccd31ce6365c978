"""Runs packed prefill forwards on a device, for scoring and for decoding's prompts."""
