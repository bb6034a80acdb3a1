"""LSTM, GRU and plain recurrent layers, as PyTorch numbers their gates."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedax.tasks.layers import dense, dropout
from fedax.tasks.pytorch.operators.table import operator

# A step of a cell: its state (a tuple), the input's part of the gates, the state's weights and offset.
Cell = Callable[[tuple[Any, ...], Any, Any, Any], tuple[Any, ...]]


def _lstm(state: tuple[Any, ...], z: Any, weights: Any, offset: Any) -> tuple[Any, ...]:
    h, c = state
    i, f, g, o = jnp.split(z + h @ weights.T + offset, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _gru(state: tuple[Any, ...], z: Any, weights: Any, offset: Any) -> tuple[Any, ...]:
    (h,) = state
    of_state = jnp.split(h @ weights.T + offset, 3, axis=-1)
    r, u = (jax.nn.sigmoid(a + b) for a, b in zip(jnp.split(z, 3, axis=-1)[:2], of_state[:2], strict=True))
    n = jnp.tanh(jnp.split(z, 3, axis=-1)[2] + r * of_state[2])
    return ((1 - u) * n + u * h,)


def _plain(activation: Callable[[Any], Any]) -> Cell:
    return lambda state, z, weights, offset: (activation(z + state[0] @ weights.T + offset),)


def _layers(
    cell: Cell,
    x: Any,
    states: tuple[Any, ...],
    params: tuple[Any, ...],
    has_biases: bool,
    num_layers: int,
    rate: float,
    bidirectional: bool,
    batch_first: bool,
    key: Any,
) -> tuple[Any, ...]:
    """The outputs of the last layer, and the last states of all, [layers · directions, b, h]."""
    if x.ndim != 3:
        raise ValueError("without a batch axis")
    x = x.swapaxes(0, 1) if batch_first else x  # [t, b, i]
    directions, each = 1 + bidirectional, 4 if has_biases else 2
    if len(params) != num_layers * directions * each:
        raise ValueError(f"{len(params)} weights, {num_layers * directions * each} are due (no projections)")
    last = []
    for layer in range(num_layers):
        if layer and key is not None and rate:
            x = dropout(x, rate, jax.random.fold_in(key, layer))
        outputs = []
        for backward in range(directions):
            k = layer * directions + backward
            of_input, of_state, *offsets = params[k * each : (k + 1) * each]
            start = tuple(state[k] for state in states)
            ys, end = _scan(cell, x, start, of_input, of_state, offsets, bool(backward))
            outputs.append(ys)
            last.append(end)
        x = jnp.concatenate(outputs, axis=-1) if bidirectional else outputs[0]
    x = x.swapaxes(0, 1) if batch_first else x
    return x, *(jnp.stack(ends) for ends in zip(*last, strict=True))


def _scan(
    cell: Cell, x: Any, start: tuple[Any, ...], of_input: Any, of_state: Any, offsets: Any, backward: bool
) -> tuple[Any, tuple[Any, ...]]:
    nothing = jnp.zeros(len(of_input), x.dtype)
    input_offset, state_offset = offsets or (nothing, nothing)
    z = dense(x, of_input.T, input_offset)  # all steps in one product
    state_offset = state_offset[None]

    def step(state: tuple[Any, ...], z: Any) -> tuple[tuple[Any, ...], Any]:
        state = cell(state, z, of_state, state_offset)
        return state, state[0]

    # Like z: under ``shard_map`` the state must be known to differ between devices, as z does.
    start = tuple(state + jnp.zeros_like(z[0, :, : state.shape[-1]]) for state in start)
    end, ys = lax.scan(step, start, z, reverse=backward)
    return ys, end


def _recurrent(cell: Cell, name: str) -> None:
    @operator(f"aten.{name}.input")
    def apply(
        input: Any,
        hx: Any,  # of an LSTM a tuple, [layers · directions, b, h] each
        params: tuple[Any, ...],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
        rng: Any,
    ) -> Any:
        options = (has_biases, num_layers, dropout, bidirectional, batch_first, rng if train else None)
        return _layers(cell, input, hx if isinstance(hx, tuple) else (hx,), params, *options)


_recurrent(_lstm, "lstm")
_recurrent(_gru, "gru")
_recurrent(_plain(jnp.tanh), "rnn_tanh")
_recurrent(_plain(jax.nn.relu), "rnn_relu")


def _of_one_step(cell: Cell, name: str) -> None:
    @operator(f"aten.{name}_cell")
    def apply(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        z = dense(input, w_ih.T, jnp.zeros(len(w_ih), input.dtype) if b_ih is None else b_ih)
        offset = jnp.zeros((1, len(w_hh)), input.dtype) if b_hh is None else b_hh[None]
        state = cell(hx if isinstance(hx, tuple) else (hx,), z, w_hh, offset)
        return state if isinstance(hx, tuple) else state[0]


_of_one_step(_lstm, "lstm")
_of_one_step(_gru, "gru")
_of_one_step(_plain(jnp.tanh), "rnn_tanh")
