"""Checks that a model can be divided over ranks. Nothing here imports torch: the launcher asks, too."""

from collections.abc import Mapping
from typing import Any

from hiscore.models.encoder_families import EncoderFamily
from hiscore.models.families import family_of, is_read_whole
from hiscore.models.family import DsaFamily
from hiscore.models.text_towers import text_config

SETTING = "TENSOR_PARALLEL"


def undivided(
    ranks: int,
    heads: int,
    kv_heads: int,
    intermediate_size: int,
    experts: int | None,
    shared_width: int | None = None,
) -> str | None:
    """Reason why sizes cannot be divided; None if they can be.

    Args:
        kv_heads: Heads of keys and values: each rank has some, or one that others have, too.
        experts: Experts of a layer; None: it has none.
        shared_width: Neurons of the shared experts together, where they are divided; None: there are none.
    """
    if heads % ranks:
        return f"{SETTING} is {ranks}, which does not divide num_attention_heads {heads}"
    if kv_heads % ranks and ranks % kv_heads:
        return f"{SETTING} is {ranks}, neither a divisor nor a multiple of num_key_value_heads {kv_heads}"
    if intermediate_size % ranks:
        return f"{SETTING} is {ranks}, which does not divide intermediate_size {intermediate_size}"
    if shared_width is not None and shared_width % ranks:
        product = "moe_intermediate_size x n_shared_experts"
        return f"{SETTING} is {ranks}, which does not divide {product} {shared_width}"
    if experts is not None and experts < ranks:
        return f"{SETTING} is {ranks}, more than the {experts} experts of a layer"
    return None


def undividable(config: Mapping[str, Any], ranks: int) -> str | None:
    """Reason why the model of a config.json cannot be divided, as far as the file says; None if it can."""
    family = family_of(config)
    if ranks == 1 or family is None:
        return None
    if isinstance(family, EncoderFamily) or is_read_whole(config):
        return f"{SETTING} is {ranks}, and models that read every item with its query compute on one device"
    config = text_config(config)
    # Sizes that divide stand for those that the file leaves out.
    heads, inner = config.get("num_attention_heads") or ranks, config.get("intermediate_size") or ranks
    if isinstance(family, DsaFamily):
        # Every rank has the latents, which all heads share.
        width, shared = config.get("moe_intermediate_size"), config.get("n_shared_experts")
        both = width * shared if width and shared else None
        return undivided(ranks, heads, heads, inner, config.get("n_routed_experts"), both)
    if family.recurrent:
        return f"{SETTING} is {ranks}, and recurrent layers compute on one device"
    if family.sizes_by_layer:
        return f"{SETTING} is {ranks}, and layers of different sizes compute on one device"
    experts = config.get(family.experts.count_key) if family.experts else None
    return undivided(ranks, heads, config.get("num_key_value_heads") or heads, inner, experts)
