"""What ends a server."""


class Fatal(Exception):
    """This server cannot run, and waiting does not help."""
