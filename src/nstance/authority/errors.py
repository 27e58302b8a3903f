"""Why there is no authority to work with. None of these goes away by trying again; storage errors pass as they are."""


class AuthorityError(Exception):
    """Base of all: stop, and show the message to a person."""


class Absent(AuthorityError):
    """There is no CA yet, and we were not asked to make one."""


class Unreadable(AuthorityError):
    """What is stored cannot be opened or understood. Never a reason to make it anew."""


class WrongCluster(AuthorityError):
    """This storage belongs to another cluster."""


class NonceTaken(AuthorityError):
    """The nonce was used with another public key: somebody else holds it. Refuse and report."""


class NotRegistered(AuthorityError):
    """The operator is unknown or revoked."""


class Conflicting(AuthorityError):
    """Somebody else changed the same thing at the same time, or it is taken. Look before you try again."""
