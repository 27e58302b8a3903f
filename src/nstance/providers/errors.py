"""What can go wrong with a provider, named by what follows from it. `code` is the label in metrics."""


class ProviderError(Exception):
    """Base of all. The message says what the provider said; it never holds a secret or userdata."""

    code = "error"


class NotFoundError(ProviderError):
    """The provider has no such VM (any more)."""

    code = "not_found"


class NoCapacityError(ProviderError):
    """Not in this subnet now: try the next one. Nothing was made."""

    code = "no_capacity"


class ThrottledError(ProviderError):
    """Too many calls: everybody waits. Nothing was made."""

    code = "throttled"

    def __init__(self, message: str, *, delay: float = 1.0) -> None:
        super().__init__(message)
        self.delay = delay


class PermanentError(ProviderError):
    """Never repeat it as it is (bad arguments, quota, permission). Nothing was made."""

    code = "permanent"


class UnavailableError(ProviderError):
    """Nothing was made or deleted. Retry."""

    code = "unavailable"


class UnknownOutcomeError(ProviderError):
    """It may have happened, or may yet happen. Look it up by its ID, or repeat it with the same ID."""

    code = "unknown_outcome"
