"""Augmentation of images: random crops and mirror images, of which each step of a client has its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedax.contract.indices import independent
from fedax.errors import ConfigError, DataError
from fedax.numbers import check_count


@dataclass(frozen=True)
class CropAndFlip:
    """Random crops and mirror images, for ``augment`` of a task: ``augment(batch, key) -> batch``.

    ``batch["x"]`` are images [n, h, w] or [n, h, w, c]. Each is padded by ``crop`` pixels of 0 at each side and cut to
    its former size at a random place; then, with probability ½, left and right are exchanged.

    Args:
        crop: ≥ 0; 4 is usual for 32×32 pixels.
        flip: whether to exchange left and right.
        channels_first: whether images are [n, c, h, w], as those of PyTorch.

    Raises:
        ConfigError: arguments out of range.
        DataError: by a run, examples that are no images.

    Source: He et al. 2016, section 4.2.

    Example:
        >>> batch = {"x": jnp.arange(9, dtype=jnp.uint8).reshape(1, 3, 3), "y": jnp.array([1])}
        >>> CropAndFlip(crop=1)(batch, jax.random.key(2))["x"][0].tolist()
        [[4, 3, 0], [7, 6, 0], [0, 0, 0]]
    """

    crop: int = 4
    flip: bool = True
    channels_first: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "crop", check_count("crop", self.crop, low=0))  # of NumPy too
        for field in ("flip", "channels_first"):
            if not isinstance(value := getattr(self, field), bool):
                raise ConfigError(field, value, "give True or False")

    def __call__(self, batch: Any, key: Any) -> Any:
        x: Any = batch.get("x") if isinstance(batch, Mapping) else None
        if jnp.ndim(x) not in ((4,) if self.channels_first else (3, 4)):
            form = "[n, c, h, w]" if self.channels_first else "[n, h, w] or [n, h, w, c]"
            raise DataError(f"examples['x']: shape {('n', *jnp.shape(x)[1:])}; crop and flip are for images {form}")
        number, height = x.shape[0], 2 if self.channels_first else 1
        places = jnp.arange(3 * number).reshape(3, number)
        if self.flip:
            mirrored = independent(places[0], 2, key).reshape(-1, *(1,) * (x.ndim - 1)) == 1
            x = jnp.where(mirrored, jnp.flip(x, height + 1), x)
        if self.crop:
            corners = independent(places[1:].T, 2 * self.crop + 1, key)
            edges = [(self.crop, self.crop) if axis in (height, height + 1) else (0, 0) for axis in range(x.ndim)]
            x = jax.vmap(lambda image, corner: self._cut(image, corner, height - 1))(jnp.pad(x, edges), corners)
        return {**batch, "x": x}

    def _cut(self, image: Any, corner: Any, axis: int) -> Any:
        starts = jnp.zeros(image.ndim, corner.dtype).at[axis : axis + 2].set(corner)
        smaller = [n - 2 * self.crop if at in (axis, axis + 1) else n for at, n in enumerate(image.shape)]
        return jax.lax.dynamic_slice(image, starts, smaller)


def augmentation(crop: int | None, flip: bool | None) -> CropAndFlip | None:
    """The ``augment`` of a task of images; ``None`` where both are off."""
    made = CropAndFlip(0 if crop is None else crop, False if flip is None else flip)
    return made if crop or flip else None
