"""What can go wrong with secrets, named by what follows from it. No message ever holds a secret or a key."""


class SecretError(Exception):
    """Base of all."""


class NotFoundError(SecretError):
    """There is no such secret. Only ever raised when the store said so."""


class AlreadyExistsError(SecretError):
    """A secret of that name is already there, and was left alone."""


class UnavailableError(SecretError):
    """The store does not answer, or the outcome could not be settled. Trying again is safe."""


class PermanentError(SecretError):
    """The store will not do this: bad name, reserved name, read-only, no permission. Trying again does not help."""


class DecryptionError(SecretError):
    """The stored secret is there but cannot be read: wrong key, or damaged. Never treat it as absent."""


class BadKeyError(SecretError):
    """The encryption key is missing or not 32 bytes."""
