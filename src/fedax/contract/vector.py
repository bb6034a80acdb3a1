"""Vector: a pytree of arrays with the operators of a vector space, so that a step reads as in the paper."""

import operator
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.types import Array, Tree, Unknown


class Vector(eqx.Module):
    """A pytree that adds, subtracts and scales like a vector; ``.tree`` is the pytree itself.

    A scalar (a number or an array of shape ``()``) takes the dtype of each leaf, so that a float64 learning rate does
    not turn a float32 model into float64. Operations between two vectors are elementwise. A vector has no truth
    value and no ordering: ``if x:`` and ``x == y`` raise a TypeError; compare ``x.tree``.

    Args:
        tree: any pytree of arrays.

    Example:
        >>> import jax.numpy as jnp
        >>> x = Vector({"w": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)})
        >>> y = x - 0.5 * x
        >>> y.tree["w"].tolist(), y.tree["b"].item(), y.dot(x).item()
        ([0.5, 1.0], 1.5, 7.0)
    """

    tree: Tree

    __array_ufunc__ = None  # a NumPy array on the left hands over to the operators below

    def map(self, f: Callable[..., Tree], *others: "Vector") -> "Vector":
        """Apply ``f`` to each leaf (and the same leaves of the others)."""
        return Vector(jax.tree.map(f, self.tree, *(other.tree for other in others)))

    def dot(self, other: "Vector") -> jax.Array:
        """⟨self, other⟩, summed over all leaves."""
        products = jax.tree.map(lambda a, b: jnp.sum(a * b), self.tree, other.tree)
        return sum(jax.tree.leaves(products), start=jnp.zeros(()))

    @property
    def size(self) -> int:
        """d, the number of components."""
        return sum(jnp.size(leaf) for leaf in jax.tree.leaves(self.tree))

    def __bool__(self) -> bool:
        raise TypeError("a Vector has no truth value; compare the leaves of its .tree")

    def __eq__(self, other: object) -> bool:
        raise TypeError("Vectors are not compared by ==; compare the leaves of their .tree")

    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> "Vector":
        return self.map(operator.neg)

    def __add__(self, other: Tree) -> "Vector":
        return _binary(operator.add, self, other)

    def __radd__(self, other: Tree) -> "Vector":
        return _binary(lambda a, b: b + a, self, other)

    def __sub__(self, other: Tree) -> "Vector":
        return _binary(operator.sub, self, other)

    def __rsub__(self, other: Tree) -> "Vector":
        return _binary(lambda a, b: b - a, self, other)

    def __mul__(self, other: Tree) -> "Vector":
        return _binary(operator.mul, self, other)

    def __rmul__(self, other: Tree) -> "Vector":
        return _binary(lambda a, b: b * a, self, other)

    def __truediv__(self, other: Tree) -> "Vector":
        return _binary(operator.truediv, self, other)

    def __rtruediv__(self, other: Tree) -> "Vector":
        return _binary(lambda a, b: b / a, self, other)

    def __pow__(self, power: float) -> "Vector":
        return _binary(operator.pow, self, power)


def zeros_like(x: Vector) -> Vector:
    """The zero of the space in which ``x`` lives.

    Example:
        >>> zeros_like(Vector(jnp.ones(2))).tree.tolist()
        [0.0, 0.0]
    """
    return x.map(jnp.zeros_like)


def scale_of(largest: Array) -> Array:
    """By what arrays are divided before they are squared, where the largest size of their numbers is this.

    The square of 1e30 is no number in float32. It stays below an eighth of the largest number: compilers divide by
    multiplying with the reciprocal, which is too small for a normal number beyond, and processors take it for 0.
    """
    bound = jnp.finfo(largest.dtype).max / 8
    return jnp.where(largest > 0, jnp.minimum(largest, bound), 1)


def norm_of(leaves: Sequence[Array]) -> Array:
    """The Euclidean norm of all numbers of some arrays; ∞ where it is above the largest number.

    Example:
        >>> round(norm_of([jnp.array([3e30]), jnp.array([4e30])]).item() / 1e30, 4)
        5.0
    """
    scale = scale_of(jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0) for leaf in leaves])))
    return scale * jnp.sqrt(sum(jnp.sum((leaf / scale) ** 2) for leaf in leaves))


def _binary(op: Callable[[Tree, Tree], Tree], x: Vector, other: Tree) -> Vector:
    if isinstance(other, Vector):
        return x.map(op, other)
    scalar = isinstance(other, int | float | complex | np.number | np.ndarray | jax.Array) and np.ndim(other) == 0
    if not scalar or isinstance(other, bool):
        raise TypeError(f"a Vector combines with Vectors and scalars, not with {other!r}")
    if isinstance(other, int):
        return x.map(lambda leaf: op(leaf, other))
    return x.map(lambda leaf: op(leaf, jnp.asarray(other, jnp.result_type(leaf))))


def spelled(tree: Tree) -> str:
    """The types and shapes of a pytree's arrays, for messages.

    Example:
        >>> spelled({"x": jnp.zeros((2, 3)), "y": jnp.zeros(2, int)}), spelled(jnp.zeros(())), spelled(None)
        ("['x'] float32[2, 3], ['y'] int32[2]", 'float32[]', 'nothing')
    """

    def one(leaf: Array) -> str:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            return type(leaf).__name__
        return f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"

    found = [(jax.tree_util.keystr(path), one(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
    return ", ".join(f"{path} {text}".strip() for path, text in found) or "nothing"


def tensor_name(path: Unknown) -> str:
    """How a leaf of a model is called, in files and in patterns: by its path in the tree, such as ``layers.0.weight``.

    Example:
        >>> [tensor_name(path) for path, _ in jax.tree_util.tree_leaves_with_path({"layers": [{"weight": 1}], "b": 2})]
        ['b', 'layers.0.weight']
    """
    return jax.tree_util.keystr(path, simple=True, separator=".") or "params"
