"""The parts of a decoder layer: operations in torch and in Triton, rotary embedding, weights, LM head."""
