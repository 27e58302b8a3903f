"""What ends the operator."""


class FatalError(Exception):
    """The operator cannot run; the message is the one line that says why and what to do."""
