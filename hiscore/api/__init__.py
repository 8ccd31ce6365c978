"""The HTTP API: reads requests in the wire formats of other servers, calls the models over gRPC, shapes answers.

It runs in processes of its own. Nothing here imports torch, transformers or Triton's Python backend.
"""
