"""What ends a server."""


class FatalError(Exception):
    """This server cannot run, and waiting does not help."""
