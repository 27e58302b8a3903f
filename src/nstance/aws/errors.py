"""What can go wrong with a call to AWS."""

import re

_PERMISSION = re.compile(r"perform:? ([a-z0-9-]+:[A-Za-z0-9]+)")


class AwsError(Exception):
    """AWS answered with an error. `code` is AWS's own word for it."""

    def __init__(self, code: str, message: str, *, status: int = 400, request_id: str = "") -> None:
        super().__init__(f"{code}: {message}" + (f" (request {request_id})" if request_id else ""))
        self.code = code
        self.message = message
        self.status = status

    @property
    def is_throttled(self) -> bool:
        return self.code in _THROTTLED or self.code.endswith("Throttled") or self.status == 429

    @property
    def is_server_fault(self) -> bool:
        """AWS failed, not the request: it may have been carried out."""
        return self.status >= 500 and not self.is_throttled

    @property
    def is_denied(self) -> bool:
        return self.code in _DENIED

    @property
    def permission(self) -> str:
        """Which one is missing, where AWS says so: a call may need more than the one of its own name."""
        found = _PERMISSION.search(self.message) if self.is_denied else None
        return found[1] if found is not None else ""

    @property
    def is_expired(self) -> bool:
        """The credentials are not accepted, or no longer: fetch others. EC2's AuthFailure has two meanings: with another
        status it is about what the call names, such as an image of somebody else."""
        return self.code in _EXPIRED and (self.code != _AUTH_FAILURE or self.status == 401)


_AUTH_FAILURE = "AuthFailure"
_THROTTLED = frozenset(
    {
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "PriorRequestNotComplete",
        "EC2ThrottledException",
    }
)
_DENIED = frozenset(
    {
        "UnauthorizedOperation",
        "AccessDenied",
        "AccessDeniedException",
        "UnauthorizedAccess",
        "OptInRequired",
    }
)
_EXPIRED = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestExpired",
        "InvalidClientTokenId",
        _AUTH_FAILURE,
        "UnrecognizedClientException",
        "SignatureDoesNotMatch",
        "InvalidSignatureException",
        "IncompleteSignature",
    }
)
