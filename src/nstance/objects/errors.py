"""Errors of object storage, named by what follows from them. `code` is the label in metrics."""


class StorageError(Exception):
    """Base class. The message names the key and quotes the store."""

    code = "error"


class NotFoundError(StorageError):
    """There is no such object. Raised only if the store says so."""

    code = "not_found"


class ConflictError(StorageError):
    """The condition did not hold: another writer was first. Read again, then decide again."""

    code = "conflict"


class UnavailableError(StorageError):
    """Nothing was applied. Retry within your deadline."""

    code = "unavailable"


class ContendedError(UnavailableError):
    """Nothing was applied because another write to this object was in progress."""


class PermissionDeniedError(StorageError):
    """The store denies access (credentials, permissions, no such bucket). Retrying does not help: stop and report it."""

    code = "permission_denied"


class ObjectTooLargeError(StorageError):
    """The object is larger than anything that Nstance writes there, so it was not read. Retrying does not help: it is foreign
    or damaged."""

    code = "too_large"


class UnknownOutcomeError(StorageError):
    """It may have been applied, or may still be. Read back before anything else."""

    code = "unknown_outcome"
