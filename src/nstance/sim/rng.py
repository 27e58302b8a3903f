"""Random numbers from a seed."""

import random


class SeededRng(random.Random):
    """A `nstance.clock.Rng` whose draws depend only on its seed."""

    def bits(self, count: int) -> int:
        return self.getrandbits(count)

    def bytes(self, count: int) -> bytes:
        return self.randbytes(count)
