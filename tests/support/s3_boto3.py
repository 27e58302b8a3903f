"""boto3 as a client of the development S3 server that runs on the test's own loop."""

import asyncio
import gc
import warnings
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

Client = Any  # boto3 makes its clients at run time


def connect(endpoint: str, *, secret: str = "dev", access: str = "dev", **config: Any) -> Client:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}, **config),
    )


async def using(endpoint: str, work: Callable[[Client], Any], **options: Any) -> Any:
    """boto3 blocks, and the server runs on this loop: so it goes to a thread."""

    def run() -> Any:
        client = connect(endpoint, **options)
        try:
            return work(client)
        finally:
            client.close()

    # botocore forgets the socket of a write that was answered before its body was asked for. It is let go here, or a
    # later test that closes all it opens would be blamed for it.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
        try:
            return await asyncio.to_thread(run)
        finally:
            gc.collect()


def code_of(work: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(ClientError) as caught:
        work()
    response = caught.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]
