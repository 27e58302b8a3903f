"""What is certain about a call that was not answered."""


class NotSentError(Exception):
    """The request never left: nothing was done."""


class NoAnswerError(Exception):
    """The request may have left, and no whole answer came: its outcome is unknown."""


class CredentialsError(NotSentError):
    """There is nothing to sign or call with. The message says where it was looked for."""
