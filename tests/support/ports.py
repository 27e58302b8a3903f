"""Ports for servers that tests start.

Below the range from which the system takes the ports of outgoing connections: there, an agent that tries to reach a server
which is down may be given that very port, connect to itself, and keep the server from ever binding it. A block of ports is
claimed by holding its last one, so that two test processes never share it.
"""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

FIRST, LAST, BLOCK = 12_000, 32_000, 50


@contextmanager
def claimed() -> Iterator[int]:
    """The first of 49 free ports in a row, nobody else's until the end."""
    for _ in range(200):
        base = random.randrange(FIRST, LAST, BLOCK)
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", base + BLOCK - 1))
            for port in range(base, base + BLOCK - 1):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            claim.close()
            continue
        try:
            yield base
        finally:
            claim.close()
        return
    raise AssertionError("no free ports")
