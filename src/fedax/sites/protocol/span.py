"""On how few units sums of one download can be made to depend: a server combines all that it was told of it.

Sums with weights w_1, …, w_m over the same units, such as clients, rows or nodes, tell every combination of them too.
Two sums over all units and over all but one tell that one's own part.
"""

import bisect
import itertools
import math

import numpy as np

_EQUAL = 1e-9  # relative: what is smaller is rounding
_MOST = 50_000  # hyperplanes that are looked at, one by one
_WORK = 5e7  # numbers that are computed for them
_BLOCK = 4096
_PASSES = 20


def fewest(vectors: np.ndarray) -> int:
    """A lower bound of the number of units in any combination of sums: of its non-zero entries.

    It is exact for two vectors, and for more while there are few different columns. Entries and differences that are
    1e-9 times smaller than the others do not count. So give weights before they are rounded or divided.

    Args:
        vectors: [m, n], the weights of m sums over n units.

    Returns:
        At least 1 and at most n; n where all vectors are zero, for they tell nothing.

    Raises:
        ValueError: a weight is not finite.

    Example:
        >>> fewest(np.array([[0.5, 0.5, 0.0]]))
        2
        >>> fewest(np.array([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]))  # their difference
        2
        >>> fewest(np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]))
        1
    """
    vectors = np.asarray(vectors, np.float64)
    if not np.isfinite(vectors).all():
        raise ValueError("weights have to be finite")
    different = {row.tobytes() if len(vectors) > 1 else b"": row for row in vectors if row.any()}
    if not different:
        return int(vectors.shape[1])
    sizes = np.abs([*different.values()])
    if len(sizes) == 1:
        return int(np.count_nonzero(sizes > _EQUAL * sizes.max()))
    return _of_basis(_basis(np.stack([*different.values()]) / sizes.max(1, keepdims=True)))


def _basis(vectors: np.ndarray) -> np.ndarray:
    """An orthonormal basis [r, n] of the span."""
    _, sizes, basis = np.linalg.svd(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), full_matrices=False)
    return np.asarray(basis[sizes > _EQUAL * sizes[0]])


def _of_basis(basis: np.ndarray) -> int:
    """The bound for a basis.

    The entries of a combination u are u · (its columns). Columns that are equal up to a factor, points, are zero
    together; those that are zero lie in a hyperplane, and the most do in one that r − 1 points span.
    """
    lengths = np.linalg.norm(basis, axis=0)
    columns = basis[:, lengths > _EQUAL * lengths.max()] / lengths[lengths > _EQUAL * lengths.max()]
    rank, total = int(columns.shape[0]), int(columns.shape[1])
    if rank == 1:
        return total
    if rank == 2:
        return total - _most_on_a_line(columns)
    largest = np.argmax(np.abs(columns), axis=0)
    signed = columns * np.sign(columns[largest, np.arange(total)])
    # That equal columns may fall into two points costs time, and changes nothing.
    _, first, counts = np.unique(np.round(signed / _EQUAL) + 0.0, axis=1, return_index=True, return_counts=True)
    points = columns[:, first]
    number = math.comb(len(counts), rank - 1)
    if number <= _MOST and number * rank * max(rank**2, len(counts)) <= _WORK:
        return total - _most_in_a_hyperplane(points, counts)
    return max(1, _disjoint_bases(points, counts))


def _most_on_a_line(columns: np.ndarray) -> int:
    """The most of some columns [2, n] that are equal up to a factor."""
    angles = np.sort(np.arctan2(columns[1], columns[0]) % np.pi)
    around = np.concatenate([angles, angles + np.pi])
    return int((np.searchsorted(around, angles + 2 * _EQUAL, "right") - np.arange(len(angles))).max())


def _most_in_a_hyperplane(points: np.ndarray, counts: np.ndarray) -> int:
    """The most columns in one hyperplane; points [r, k], each of so many columns."""
    rank, number = points.shape
    subsets, found = itertools.combinations(range(number), rank - 1), 0
    while chosen := list(itertools.islice(subsets, _BLOCK)):
        _, sizes, rows = np.linalg.svd(points.T[np.array(chosen)])
        spans = sizes[:, -1] > _EQUAL  # others span no hyperplane
        apart = np.abs(rows[spans, -1] @ points)
        # A normal is the less exact the closer its points are to less than a hyperplane.
        near = apart <= _EQUAL + 1e-14 / sizes[spans, -1:]
        found = max(found, int((near @ counts).max(initial=0)))
    return found


def _disjoint_bases(points: np.ndarray, counts: np.ndarray) -> int:
    """How many disjoint bases of columns were found: a combination is not zero in one column of each at least."""
    rank, number = points.shape
    left, found, rng = counts.copy(), 0, np.random.default_rng(0)
    for _ in range(_PASSES):
        # As many blocks as there can be, each with r different points: a point's columns go to blocks in turn.
        too_many = lambda most, left=left: np.minimum(left, most).sum() < rank * most  # noqa: E731
        most = bisect.bisect_left(range(1, int(left.sum()) // rank + 1), True, key=too_many)
        if not most:
            break
        order = rng.permutation(number)
        blocks = np.repeat(order, np.minimum(left[order], most))[: rank * most].reshape(rank, most).T
        full = np.linalg.svd(points.T[blocks], compute_uv=False)[:, -1] > _EQUAL
        found += int(full.sum())
        left = left - np.bincount(blocks[full].reshape(-1), minlength=number)
    return found
