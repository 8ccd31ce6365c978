"""Turns a Llama-like model of transformers into one that gives the same scores and has fewer outliers to quantise.

An orthogonal matrix is absorbed into the weights around the residual stream, and one into values and the output of
attention; norms are absorbed into the products that follow them. Nothing is computed that was not before. Needs no
data. Source: QuaRot (arXiv 2404.00456), there with Hadamard matrices everywhere.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn


def hadamard(size: int) -> Tensor:
    """Sylvester's matrix over the root of its size, a power of two: float64 [size, size], orthogonal."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    normed: Tensor = matrix / math.sqrt(size)
    return normed


def orthogonal(size: int, seed: int) -> Tensor:
    """A random orthogonal matrix: float64 [size, size]."""
    generator = torch.Generator().manual_seed(seed)
    q, r = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    # The signs make it uniform over all orthogonal matrices.
    uniform: Tensor = q * torch.sign(torch.diagonal(r))
    return uniform


@torch.no_grad()
def rotate(model: Any, seed: int = 0) -> Any:
    """Absorb rotations into a causal LM whose blocks are Llama's, in place.

    Args:
        model: In float32.
        seed: Of the rotation of the residual stream.

    Returns:
        The model.
    """
    body, head = model.model, model.lm_head.weight.detach().clone()
    q = orthogonal(head.shape[1], seed).to(head.device)
    head_dim = body.layers[0].self_attn.head_dim
    of_heads = hadamard(head_dim).to(head.device)
    model.lm_head = _linear(_absorb(head, body.norm) @ q)
    body.embed_tokens.weight = nn.Parameter((body.embed_tokens.weight.double() @ q).float())
    for layer in body.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for names, module, norm in (
            (("q_proj", "k_proj", "v_proj"), attention, layer.input_layernorm),
            (("gate_proj", "up_proj"), mlp, layer.post_attention_layernorm),
        ):
            for name in names:
                _set(module, name, _absorb(getattr(module, name).weight, norm) @ q)
            norm.weight.fill_(1)
        _set(attention, "o_proj", q.T @ attention.o_proj.weight.double())
        _set(mlp, "down_proj", q.T @ mlp.down_proj.weight.double())
        values = attention.v_proj.weight.double().unflatten(0, (-1, head_dim))
        _set(attention, "v_proj", (of_heads.T @ values).flatten(0, 1))
        outputs = attention.o_proj.weight.double().unflatten(1, (-1, head_dim))
        _set(attention, "o_proj", (outputs @ of_heads).flatten(1))
    body.norm.weight.fill_(1)
    return model


def _absorb(weight: Tensor, norm: Any) -> Tensor:
    absorbed: Tensor = weight.double() * norm.weight.double()
    return absorbed


def _set(module: Any, name: str, weight: Tensor) -> None:
    setattr(module, name, _linear(weight))


def _linear(weight: Tensor) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device=weight.device)
    linear.weight = nn.Parameter(weight.float(), requires_grad=False)
    return linear
