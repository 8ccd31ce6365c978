"""The HTTP API: reads requests in the wire formats of other servers, calls the models over gRPC, shapes answers.

It runs in processes of its own. Nothing here imports torch, transformers or Triton's Python backend.
"""

import os

# Read when grpc is imported, so set before. gRPC's event engine hands each answer on between two threads of its
# own before ours hears of it; without it, the thread that waits reads the socket: 0.15 ms less for each call.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")
