"""Rows of free ports for servers that start at the same time: none is given away twice."""

import contextlib
import random
import socket
from collections.abc import Collection

STEP = 20  # ports that belong to one row
FIRST, BEHIND = 20_000, 32_000  # below those that the system hands out itself

_given: set[int] = set()


def free_base(offsets: Collection[int], hosts: Collection[str] = ("127.0.0.1",)) -> int:
    """A port such that it plus each offset is free on all hosts."""
    for _ in range(200):
        base = random.randrange(FIRST, BEHIND, STEP)
        if base in _given or not all(_is_free(host, base + offset) for host in hosts for offset in offsets):
            continue
        _given.add(base)
        return base
    raise RuntimeError("no free ports were found")


def _is_free(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind((host, port))
        return True
    return False
