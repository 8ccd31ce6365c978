"""Kernels in the Triton language for CUDA devices, each beside the function that launches it.

A kernel's docstring gives its grid, then the shapes of what it reads (In), writes (Out) and changes (In place). A
tensor without a dtype has that of the activations. R is the number of rows.

Parameters that mean the same in all kernels:
    x, weight, bias, out: In a product [rows, inputs], [outputs, inputs], [outputs], [rows, outputs]. Under GATED
        weight is [2 outputs, inputs], gate first, and out = act(x gate^T) * (x up^T).
    seq_indices, positions: int32 [R]: each row's sequence, -1 for padding, and its position there.
    host_block_table, device_block_table: int32 [max_sequences, table_stride]: see `KVCache`.
    row_options: float64 [10, R]: see `sampling_options`. vocabulary: Numbers of a row of logits.
    scale: Factor of q k^T. soft_cap: See `numerics.soft_cap`, read under CAPPED.
    sinks: float32 [heads], see `AttentionShape`, read under SINKS.
    eps: Added to the mean square by a norm; under CENTRED norms are layer norms.
    *_stride: Numbers from one row of a tensor to the next; *_head_stride: from one head to the next.
    HEADS, KV_HEADS, HEAD_DIM (D), PARTS (C: 2 for a key and a value, 1 for a latent), PAGE (P): Sizes.
    PADDED, PADDED_*: Powers of two that hold a size; a product needs at least 16.
    M, N, K: Rows or query heads, outputs or keys, and inputs that a program multiplies at a time.
    BLOCK, STEP: Numbers of a row that a program reads at a time. splits, SPLITS: Parts of a row among programs.
    BIASED: bias is read. GELU: The gate's activation: 0 SiLU, 1 GELU by tanh, 2 exact GELU.
    PRECISION: `input_precision` of tl.dot: float32 as it is ("ieee") or cut ("tf32").
    CHAINED: Launched dependently, see `gemv.pdl_launch_kwargs`.
    RANKS, RANK: Ranks that share the pages of the host's pool, and this one: see `kv_transfer`.
    lru_pages, ring_pages: Pages of a sequence's device buffer: those evicted by use, and those of the newest.
"""
