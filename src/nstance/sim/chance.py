"""Chance from a seed."""

import random


class SeededChance:
    def __init__(self, seed: int | str) -> None:
        self._source = random.Random(seed)

    def uniform(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)

    def bits(self, count: int) -> int:
        return self._source.getrandbits(count)

    def bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)
