"""Errors in the form of S3."""

from nstance.objects import errors as storage


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
    match problem:
        case storage.NotFoundError():
            return S3Error(404, "NoSuchKey", str(problem))
        case storage.ConflictError():
            return S3Error(412, "PreconditionFailed", str(problem))
        case storage.PermissionDeniedError():
            return S3Error(400, "InvalidArgument", str(problem))
        case storage.UnavailableError():
            return S3Error(503, "ServiceUnavailable", str(problem))
        case _:
            return S3Error(500, "InternalError", str(problem))
