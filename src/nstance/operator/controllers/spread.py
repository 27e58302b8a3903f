"""How many replicas each shard keeps."""

from collections.abc import Iterable


def spread(replicas: int, shards: Iterable[str]) -> dict[str, int]:
    """Evenly; what does not divide goes to the first ones, in their order."""
    distinct = list(dict.fromkeys(shards))
    if not distinct:
        return {}
    each, rest = divmod(replicas, len(distinct))
    return {shard: each + (number < rest) for number, shard in enumerate(distinct)}
