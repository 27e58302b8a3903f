"""Ranges of free ports for servers that start concurrently: no range is returned twice."""

import contextlib
import random
import socket
from collections.abc import Collection

STEP = 20  # ports of one range
FIRST, END = 20_000, 32_000  # below the ephemeral ports of the system

_used: set[int] = set()


def free_base(offsets: Collection[int], hosts: Collection[str] = ("127.0.0.1",)) -> int:
    """A port such that it plus each offset is free on all hosts."""
    for _ in range(200):
        base = random.randrange(FIRST, END, STEP)
        if base in _used or not all(_is_free(host, base + offset) for host in hosts for offset in offsets):
            continue
        _used.add(base)
        return base
    raise RuntimeError("failed to find free ports")


def _is_free(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind((host, port))
        return True
    return False
