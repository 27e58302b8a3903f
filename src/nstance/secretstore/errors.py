"""What can go wrong with secrets, named by what follows from it. No message ever holds a secret or a key."""


class SecretError(Exception):
    """Base of all."""


class Missing(SecretError):
    """There is no such secret. Only ever raised when the store said so."""


class Exists(SecretError):
    """A secret of that name is already there, and was left alone."""


class Unavailable(SecretError):
    """The store does not answer, or the outcome could not be settled. Trying again is safe."""


class Refused(SecretError):
    """The store will not do this: bad name, reserved name, read-only, no permission. Trying again does not help."""


class CannotOpen(SecretError):
    """The stored secret is there but cannot be read: wrong key, or damaged. Never treat it as absent."""


class BadKey(SecretError):
    """The encryption key is missing or not 32 bytes."""
