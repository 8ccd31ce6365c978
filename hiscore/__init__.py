"""hiscore: prefill-only scoring and HiSparse decoding behind Triton Inference Server."""

__version__ = "0.1.0"
