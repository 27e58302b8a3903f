"""What can go wrong with a Kubernetes API server, named by what follows from it."""


class KubeError(Exception):
    """Base of all. The message is the server's own where it gave one; it never holds a token or a Secret's data."""


class NotFoundError(KubeError):
    """There is no such object, or no such kind."""


class AlreadyExistsError(KubeError):
    """A create met an object of that name. Read it and decide."""


class ConflictError(KubeError):
    """The object has changed since it was read. Read it again and decide anew."""


class ExpiredError(KubeError):
    """The version to go on from is too old (410). List again; what is missing from the list was deleted meanwhile."""


class InvalidError(KubeError):
    """Never repeat it as it is: the object breaks its schema or an admission rule (400, 422)."""


class ForbiddenError(KubeError):
    """The credentials are wrong or lack a right (401, 403). Retry slowly: somebody has to grant it."""


class ThrottledError(KubeError):
    """Not now (429): a budget refuses the eviction, or the server asks for patience. Nothing was changed."""

    def __init__(self, message: str, *, delay: float = 1.0) -> None:
        super().__init__(message)
        self.delay = delay


class UnavailableError(KubeError):
    """The server could not be reached, or failed before it did anything. Retry."""


class UnknownOutcomeError(KubeError):
    """The call was sent and no answer came: it may have happened. Read before repeating what is not idempotent."""
