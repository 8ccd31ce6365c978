"""Decoders with a lightning indexer over latent attention: DeepSeek-V3.2 and GLM-MoE-DSA."""
