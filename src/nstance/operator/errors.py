"""Errors that end the operator."""


class FatalError(Exception):
    """The operator cannot run. The message is one line: what is wrong and what to do about it."""
