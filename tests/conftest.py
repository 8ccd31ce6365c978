"""What must be set before any test module imports a kernel."""

import os

import torch

if not torch.cuda.is_available():
    # Without a GPU, kernels run in Triton's interpreter; it is chosen when a kernel is defined.
    os.environ["TRITON_INTERPRET"] = "1"
