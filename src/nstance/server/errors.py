"""Errors that end a server."""


class FatalError(Exception):
    """This server cannot run, and a retry does not help."""
