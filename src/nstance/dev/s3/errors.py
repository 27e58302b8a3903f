"""What the server refuses, in the words of S3."""


class S3Error(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.code = code
        self.message = message


def invalid(message: str) -> S3Error:
    return S3Error(400, "InvalidArgument", message)


def not_implemented(what: str) -> S3Error:
    return S3Error(501, "NotImplemented", f"{what}: this development server does not have it")
