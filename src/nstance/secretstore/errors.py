"""Errors of secret stores, named by what follows from them. No message ever contains a secret or a key."""


class SecretError(Exception):
    """Base class."""


class NotFoundError(SecretError):
    """There is no such secret. Raised only if the store says so."""


class AlreadyExistsError(SecretError):
    """A secret of that name exists, and was not changed."""


class UnavailableError(SecretError):
    """No answer, or the outcome is unknown. Retrying is safe."""


class PermanentError(SecretError):
    """Invalid or reserved name, read-only store, or no permission. Retrying does not help."""


class DecryptionError(SecretError):
    """The secret exists but cannot be read: wrong key, or damaged. Never treat it as absent."""


class BadKeyError(SecretError):
    """The encryption key is missing or not 32 bytes."""
