"""moto's server for tests, which are skipped with a message where moto is not installed."""

import atexit
import contextlib
import functools
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nstance.aws.encoding import parse_xml
from nstance.dev.aws import moto

REGION = "eu-north-1"
SECONDS = 120.0  # for a call: the first one loads all that moto knows of EC2
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": REGION}


@contextlib.contextmanager
def run_moto() -> Iterator[str]:
    """A server of the test's own: its address."""
    try:
        program = moto.find_moto()
    except moto.MissingError as missing:
        pytest.skip(str(missing))
    with tempfile.TemporaryDirectory(prefix="nst-moto-") as folder, moto.run_moto(program, Path(folder)) as url:
        yield url


@functools.cache
def _shared() -> str:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(run_moto())


def fresh_moto() -> str:
    """One server for all tests of a run, emptied: its address."""
    url = _shared()
    reset(url)
    return url


def reset(url: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{url}/moto-api/reset", method="POST"), timeout=30).close()


def environment(url: str) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL": url, **KEYS}


def moto_call(url: str, action: str, params: dict[str, str] | None = None, *, service: str = "ec2") -> dict[str, Any]:
    """A call past the stand-in, as a person makes it."""
    version = {"ec2": "2016-11-15", "elasticloadbalancing": "2015-12-01"}[service]
    body = urllib.parse.urlencode({"Action": action, "Version": version, **(params or {})}).encode()
    scope = f"Credential=test/20260101/{REGION}/{service}/aws4_request"
    headers = {"Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=SECONDS) as reply:
        return parse_xml(reply.read())
