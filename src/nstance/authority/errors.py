"""Errors of the cluster's authority. Retrying does not help; storage errors pass unchanged."""


class AuthorityError(Exception):
    """Base class: stop, and show the message to a person."""


class NotFoundError(AuthorityError):
    """There is no CA or nonce key yet, and creating one was not requested."""


class UnreadableError(AuthorityError):
    """A stored object cannot be decrypted or parsed. Never a reason to create a new one."""


class WrongClusterError(AuthorityError):
    """The storage belongs to another cluster."""


class NonceUsedError(AuthorityError):
    """The nonce was used with another public key, so another party has it. Reject and report."""


class NotRegisteredError(AuthorityError):
    """The operator is unknown or revoked."""


class ConflictError(AuthorityError):
    """Another writer changed the object, or the name is taken. Look before trying again."""
