"""Provider errors, named by what follows from them. `code` is the label in metrics."""

from nstance.model.offer import CapacityScope as CapacityScope


class ProviderError(Exception):
    """Base class. The message quotes the provider; it never contains a secret or userdata."""

    code = "error"


class NotFoundError(ProviderError):
    """The provider has no such VM or image."""

    code = "not_found"


class NoCapacityError(ProviderError):
    """No capacity in this offer now: try the next one. Nothing was created. `subject` names what is exhausted."""

    code = "no_capacity"

    def __init__(self, message: str, *, scope: CapacityScope = CapacityScope.SUBNET, subject: str = "") -> None:
        super().__init__(message)
        self.scope = scope
        self.subject = subject


class ThrottledError(ProviderError):
    """Too many calls: all calls wait for `delay` seconds. Nothing was created."""

    code = "throttled"

    def __init__(self, message: str, *, delay: float = 1.0) -> None:
        super().__init__(message)
        self.delay = delay


class PermanentError(ProviderError):
    """Repeating the same call never helps. Nothing was created. `permission` or `parameter` names the missing permission or
    the bad parameter, if the provider says so."""

    code = "permanent"

    def __init__(self, message: str, *, permission: str = "", parameter: str = "") -> None:
        super().__init__(message)
        self.permission = permission
        self.parameter = parameter
        if permission:
            self.code = "permission_denied"


class UnavailableError(ProviderError):
    """Nothing was created or deleted. Retry."""

    code = "unavailable"


class OutOfReachError(UnavailableError):
    """The provider was not reached, or does not accept the credentials: that says nothing about an offer."""


class UnknownOutcomeError(ProviderError):
    """It may have happened, or may still happen. Look it up by its ID, or repeat it with the same ID."""

    code = "unknown_outcome"


def deleted(id: str) -> PermanentError:
    return PermanentError(f"{id} was deleted; a new instance needs a new ID")
