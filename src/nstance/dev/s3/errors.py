"""Errors in the form of S3."""

from nstance.objects import errors as storage

_CODES = (
    (storage.NotFoundError, 404, "NoSuchKey"),
    (storage.ConflictError, 412, "PreconditionFailed"),
    (storage.PermissionDeniedError, 400, "InvalidArgument"),
    (storage.UnavailableError, 503, "ServiceUnavailable"),
)


class S3Error(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.code = code
        self.message = message


def invalid(message: str) -> S3Error:
    return S3Error(400, "InvalidArgument", message)


def not_implemented(what: str) -> S3Error:
    return S3Error(501, "NotImplemented", f"{what} is not supported by this development server")


def to_s3_error(problem: storage.StorageError) -> S3Error:
    for kind, status, code in _CODES:
        if isinstance(problem, kind):
            return S3Error(status, code, str(problem))
    return S3Error(500, "InternalError", str(problem))
