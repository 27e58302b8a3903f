"""The error of the development programs."""


class DevError(Exception):
    """Something did not start or did not happen. The message says what is wrong and what to do."""
