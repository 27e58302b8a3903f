"""What can go wrong with object storage, named by what follows from it. `code` is the label in metrics."""


class StorageError(Exception):
    """Base of all. The message names the key and what the store said."""

    code = "error"


class NotFoundError(StorageError):
    """There is no such object. Only ever raised when the store said so."""

    code = "missing"


class ConflictError(StorageError):
    """The condition did not hold: somebody else wrote first. Read again, then decide again."""

    code = "conflict"


class UnavailableError(StorageError):
    """Nothing was applied. Retry within your deadline."""

    code = "unavailable"


class PermissionDeniedError(StorageError):
    """The store refuses us (credentials, permissions, no such bucket). Retrying does not help: stop and say so."""

    code = "denied"


class ObjectTooLargeError(StorageError):
    """The object is larger than anything that is written there, so it was not read. Reading it again does not help: it
    was put there by somebody else, or is damaged."""

    code = "too_large"


class UnknownOutcomeError(StorageError):
    """It may have been applied, or may yet be. Read back before anything else."""

    code = "unknown"
