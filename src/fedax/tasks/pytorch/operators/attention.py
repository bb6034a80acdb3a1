"""Embeddings and attention."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedax.tasks.layers import dropout
from fedax.tasks.pytorch.operators.table import operator


@operator("aten.embedding")
def embedding(
    weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    if scale_grad_by_freq:
        raise ValueError("scale_grad_by_freq")
    rows = jnp.take(weight, indices, axis=0, mode="clip")
    if padding_idx >= 0:  # this row is not learned
        rows = jnp.where((indices == padding_idx)[..., None], lax.stop_gradient(rows), rows)
    return rows


@operator("aten.embedding_bag", lay="known")
def embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    if scale_grad_by_freq:
        raise ValueError("scale_grad_by_freq")
    if not isinstance(offsets, np.ndarray) or len(offsets) == 0:
        raise ValueError("bags of different lengths: call it with x of shape [b, length], and padding_idx")
    length = indices.shape[0] // (len(offsets) - include_last_offset)
    if not np.array_equal(offsets, np.arange(len(offsets)) * length):
        raise ValueError("bags of different lengths: call it with x of shape [b, length], and padding_idx")
    indices = jnp.asarray(indices).reshape(-1, length)
    rows = jnp.take(weight, indices, axis=0, mode="clip")  # [b, length, d]
    counted = jnp.ones((*indices.shape, 1), bool)
    if padding_idx is not None and padding_idx >= 0:
        counted = (indices != padding_idx)[..., None]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(-1, length, 1)
    if mode == 2:
        highest = jnp.where(counted, rows, -jnp.inf).max(axis=1)
        bags = jnp.where(counted.any(axis=1), highest, 0)
    else:
        bags = jnp.where(counted, rows, 0).sum(axis=1)
        bags = bags / jnp.maximum(counted.sum(axis=1), 1).astype(rows.dtype) if mode == 1 else bags
    return bags, None, None, None


@operator("aten.scaled_dot_product_attention")
def attend(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    rng: Any = None,
) -> Any:
    if enable_gqa:
        key, value = (jnp.repeat(x, query.shape[-3] // x.shape[-3], axis=-3) for x in (key, value))
    scores = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)) @ key.swapaxes(-1, -2)
    if is_causal:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(seen.reshape((1,) * (scores.ndim - 2) + seen.shape), scores, -jnp.inf)
    if attn_mask is None:
        weights = jax.nn.softmax(scores, axis=-1)
    else:
        mask = attn_mask.reshape((1,) * (scores.ndim - attn_mask.ndim) + attn_mask.shape)
        scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == bool else scores + mask
        some = (scores > -jnp.inf).any(axis=-1, keepdims=True)  # a row whose mask allows nothing gets zeros
        weights = jnp.where(some, jax.nn.softmax(jnp.where(some, scores, 0), axis=-1), 0)
    return dropout(weights, dropout_p, rng) @ value
