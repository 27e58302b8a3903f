"""Errors of a Kubernetes API server, named by what the caller should do."""


class KubeError(Exception):
    """Base class. The message is the server's, if it sent one; it never contains a token or a Secret's data."""


class NotFoundError(KubeError):
    """The object or its kind does not exist."""


class AlreadyExistsError(KubeError):
    """An object with this name exists already. Read it and decide."""


class ConflictError(KubeError):
    """The object has changed since it was read. Read it and decide again."""


class ExpiredError(KubeError):
    """The version to continue from is too old (410). List again; objects missing from the list were deleted."""


class InvalidError(KubeError):
    """The object breaks its schema or an admission rule (400, 422). Do not repeat the request unchanged."""


class ForbiddenError(KubeError):
    """The credentials are wrong or lack a permission (401, 403). Retry slowly."""


class ThrottledError(KubeError):
    """Not now (429): a disruption budget forbids the eviction, or the server is busy. Nothing was changed."""

    def __init__(self, message: str, *, delay: float = 1.0) -> None:
        super().__init__(message)
        self.delay = delay


class UnavailableError(KubeError):
    """The server was not reached, or failed before it changed anything. Retry."""


class UnknownOutcomeError(KubeError):
    """The request was sent and no answer arrived, so it may have been applied. Read before repeating it."""
