"""What can go wrong with a provider, named by what follows from it."""


class ProviderError(Exception):
    """Base of all. The message says what the provider said; it never holds a secret or userdata."""


class Gone(ProviderError):
    """The provider has no such VM (any more)."""


class NoCapacity(ProviderError):
    """Not in this subnet now: try the next one. Nothing was made."""


class Throttled(ProviderError):
    """Too many calls: everybody waits. Nothing was made."""

    def __init__(self, message: str, *, delay: float = 1.0) -> None:
        super().__init__(message)
        self.delay = delay


class Refused(ProviderError):
    """Never repeat it as it is (bad arguments, quota, permission). Nothing was made."""


class Unavailable(ProviderError):
    """Nothing was made or deleted. Retry."""


class Unknown(ProviderError):
    """It may have happened, or may yet happen. Look it up by its ID, or repeat it with the same ID."""
