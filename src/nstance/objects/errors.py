"""What can go wrong with object storage, named by what follows from it."""


class StorageError(Exception):
    """Base of all. The message names the key and what the store said."""


class Missing(StorageError):
    """There is no such object. Only ever raised when the store said so."""


class Conflict(StorageError):
    """The condition did not hold: somebody else wrote first. Read again, then decide again."""


class Unavailable(StorageError):
    """Nothing was applied. Retry within your deadline."""


class Denied(StorageError):
    """The store refuses us (credentials, permissions, no such bucket). Retrying does not help: stop and say so."""


class ObjectTooLargeError(StorageError):
    """The object is larger than anything that is written there, so it was not read. Reading it again does not help: it
    was put there by somebody else, or is damaged."""


class Unknown(StorageError):
    """It may have been applied, or may yet be. Read back before anything else."""
