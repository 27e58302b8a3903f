"""How many instances of a pool each shard gets. Pure.

Replicas are spread evenly. An uneven pool (imported as it was, or shrunk by a chosen instance) stays uneven while its
replicas stay: growth goes to the smallest shards and shrinkage to the largest. Only a change of the shards spreads it
again. So no instance is ever deleted to even a pool out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chosen:
    """An instance that somebody chose to leave when its pool shrinks."""

    shard: str
    instance: str


def spread(replicas: int, shards: Iterable[str]) -> dict[str, int]:
    """Evenly; the first shards get one more if it does not divide."""
    distinct = list(dict.fromkeys(shards))
    if not distinct:
        return {}
    share, rest = divmod(replicas, len(distinct))
    return {shard: share + (number < rest) for number, shard in enumerate(distinct)}


def divide(
    replicas: int,
    shards: Iterable[str],
    current: Mapping[str, int],
    *,
    chosen: Sequence[Chosen] = (),
    pinned: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """`current`: the sizes that the shards have. `pinned`: sizes that hold as long as they add up to the replicas."""
    distinct = list(dict.fromkeys(shards))
    if pinned is not None and is_pinned(replicas, distinct, pinned):
        return {shard: pinned.get(shard, 0) for shard in distinct}
    if current.keys() != set(distinct):
        return spread(replicas, distinct)
    sizes = {shard: current[shard] for shard in distinct}
    for each in chosen:
        if sum(sizes.values()) > replicas and sizes.get(each.shard):
            sizes[each.shard] -= 1
    missing = replicas - sum(sizes.values())
    return _grow(sizes, missing) if missing >= 0 else _shrink(sizes, -missing)


def is_pinned(replicas: int, shards: Iterable[str], pinned: Mapping[str, int]) -> bool:
    return pinned.keys() <= set(shards) and sum(pinned.values()) == replicas


def _grow(sizes: Mapping[str, int], number: int) -> dict[str, int]:
    """Raises the smallest ones to a common level; the first ones get the remainder."""
    low, high = 0, max(sizes.values()) + number  # the highest level that `number` instances reach
    while low < high:
        level = (low + high + 1) // 2
        low, high = (
            (level, high) if sum(max(0, level - size) for size in sizes.values()) <= number else (low, level - 1)
        )
    grown = {shard: max(size, low) for shard, size in sizes.items()}
    rest = number - sum(grown.values()) + sum(sizes.values())
    for shard in [each for each, size in grown.items() if size == low][:rest]:
        grown[shard] += 1
    return grown


def _shrink(sizes: Mapping[str, int], number: int) -> dict[str, int]:
    """Lowers the largest ones to a common level; the last ones lose the remainder."""
    low, high = 0, max(sizes.values())  # the lowest level that removes at most `number` instances
    while low < high:
        level = (low + high) // 2
        low, high = (
            (low, level) if sum(max(0, size - level) for size in sizes.values()) <= number else (level + 1, high)
        )
    shrunk = {shard: min(size, low) for shard, size in sizes.items()}
    rest = number - sum(sizes.values()) + sum(shrunk.values())
    for shard in [each for each, size in shrunk.items() if size == low][::-1][:rest]:
        shrunk[shard] -= 1
    return shrunk
