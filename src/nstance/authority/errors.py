"""Why there is no authority to work with. None of these goes away by trying again; storage errors pass as they are."""


class AuthorityError(Exception):
    """Base of all: stop, and show the message to a person."""


class NotFoundError(AuthorityError):
    """There is no CA yet, and we were not asked to make one."""


class UnreadableError(AuthorityError):
    """What is stored cannot be opened or understood. Never a reason to make it anew."""


class WrongClusterError(AuthorityError):
    """This storage belongs to another cluster."""


class NonceUsedError(AuthorityError):
    """The nonce was used with another public key: somebody else holds it. Refuse and report."""


class NotRegisteredError(AuthorityError):
    """The operator is unknown or revoked."""


class ConflictError(AuthorityError):
    """Somebody else changed the same thing at the same time, or it is taken. Look before you try again."""
