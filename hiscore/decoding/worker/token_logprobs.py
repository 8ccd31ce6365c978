"""Compute the log-probabilities of sampled tokens on the device."""

import torch
from torch import Tensor


def pack_logprobs(logits: Tensor, chosen: Tensor, alternatives: int) -> Tensor:
    """The log-probabilities of tokens and of the likeliest ones, packed for one copy to the host.

    Args:
        logits: float32 [P, V], as the model gave them.
        chosen: int64 [P].
        alternatives: K; a vocabulary that is smaller repeats its last.

    Returns:
        int64 [P * (1 + 2 K)]: for each row the bits of K + 1 float64 values, the chosen token's first, then K ids.
    """
    normaliser = logits.logsumexp(-1, keepdim=True)
    top, ids = logits.topk(min(alternatives, logits.shape[-1]))
    if (lacking := alternatives - ids.shape[-1]) > 0:
        top = torch.cat((top, top[:, -1:].expand(-1, lacking)), -1)
        ids = torch.cat((ids, ids[:, -1:].expand(-1, lacking)), -1)
    values = torch.cat((logits.gather(-1, chosen[:, None]), top), -1) - normaliser
    return torch.cat((values.double().view(torch.int64), ids), -1).flatten()
