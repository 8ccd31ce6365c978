"""Families with latent attention and a lightning indexer: DeepSeek-V3.2 and GLM-MoE-DSA."""
