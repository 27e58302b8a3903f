"""Ports for servers that tests start.

Below the range from which the system takes the ports of outgoing connections: there, an agent that tries to reach a server
which is down may be given that very port, connect to itself, and keep the server from ever binding it. And below the range
of `bench.ports`, which reserves no port. A block of ports is claimed by holding its last one, so
that two test processes never share it.
"""

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

FIRST, LAST, BLOCK = 12_000, 20_000, 50


@contextmanager
def claimed(blocks: int = 1) -> Iterator[int]:
    """The first of so many times 50 free ports in a row, reserved until the end; the last one of each 50 is in use."""
    for _ in range(200):
        base = random.randrange(FIRST, LAST - BLOCK * (blocks - 1), BLOCK)
        with ExitStack() as held:
            try:
                for first in range(base, base + BLOCK * blocks, BLOCK):
                    claim = held.enter_context(socket.socket())
                    claim.bind(("127.0.0.1", first + BLOCK - 1))
                    for port in range(first, first + BLOCK - 1):
                        socket.create_server(("127.0.0.1", port)).close()
            except OSError:
                continue
            yield base
            return
    raise AssertionError("no free ports")


@pytest.fixture
def free_port() -> Iterator[int]:
    with claimed() as port:
        yield port
