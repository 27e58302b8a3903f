"""What ends the operator."""


class Fatal(Exception):
    """The operator cannot run; the message is the one line that says why and what to do."""
