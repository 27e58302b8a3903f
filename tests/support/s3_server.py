"""The development S3 server in the test's own process, on a free port."""

import contextlib
import pathlib
from collections.abc import AsyncIterator, Iterator

from nstance.dev.s3 import main
from nstance.objects import s3

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "dev", "AWS_SECRET_ACCESS_KEY": "dev"}


@contextlib.asynccontextmanager
async def serving(folder: pathlib.Path) -> AsyncIterator[str]:
    """Gives the endpoint."""
    async with main.serving({"dev": folder}, port=0) as port:
        yield f"http://127.0.0.1:{port}"


def client(
    endpoint: str, *, bucket: str = "dev", timeout: float = 30.0, access: str = "dev", secret: str = "dev"
) -> s3.S3Store:
    with environment(AWS_ACCESS_KEY_ID=access, AWS_SECRET_ACCESS_KEY=secret):
        return s3.S3Store(bucket, endpoint=endpoint, timeout=timeout)


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        yield
