"""Chance from a seed."""

import random


class SeededRng(random.Random):
    """A `Chance`; worlds that throw dice themselves draw from the same source."""

    def bits(self, count: int) -> int:
        return self.getrandbits(count)

    def bytes(self, count: int) -> bytes:
        return self.randbytes(count)
