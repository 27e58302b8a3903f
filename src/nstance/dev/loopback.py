"""Where the imitations of the world listen: on this machine only."""

import argparse
import logging
import socket


def listen(port: int) -> list[socket.socket]:
    """Loopback in both families, because `localhost` may mean either."""
    first = socket.create_server(("127.0.0.1", port))
    sockets = [first]
    if socket.has_ipv6:
        try:
            sockets.append(socket.create_server(("::1", first.getsockname()[1]), family=socket.AF_INET6))
        except OSError as problem:
            if port and "in use" in str(problem):
                first.close()
                raise
            logging.getLogger(__name__).info("not listening on ::1: %s", problem)
    return sockets


def port(text: str) -> int:
    """The argument of --port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected 0 to 65535, not {text!r}")
    return int(text)
