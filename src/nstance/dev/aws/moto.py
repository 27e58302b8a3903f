"""moto's server behind the stand-in: where the calls go, and the process that answers them.

moto runs in an environment of its own, because it brings a hundred packages that nothing else here needs.
"""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import time
import urllib.parse
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from nstance.dev.aws import xml

START_SECONDS = 180.0  # a busy machine
CONNECT_ATTEMPTS = 3
MAX_CALLS = 4  # at once: moto has a thread for each, and drops connections when it has many
AMI = "ami-0123456789abcdef0"  # the images that a fresh moto has
ARM_AMI = "ami-0fedcba9876543210"
_ENVIRONMENT = {
    "MOTO_ENABLE_AMI_VALIDATION": "1",
    "MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION": "1",
}

# Standard input ends with the program that uses moto, also when that is killed.
_END_WITH_STDIN = 'exec 3<&0; "$@" 3<&- </dev/null & pid=$!; { cat <&3 >/dev/null; kill -9 $pid; } & wait $pid'

_NOTHING: Mapping[str, str] = {}

Reply = tuple[bytes, int, Mapping[str, str]]


class Refusal(Exception):
    """AWS answers with an error."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


class MissingError(Exception):
    """moto is not installed. The message says how to get it."""


def find_moto() -> Path:
    """The program, from `NSTANCE_MOTO` or where `make moto` puts it. Raises MissingError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = Path(os.environ.get("NSTANCE_MOTO") or cache / "nstance/moto/bin/moto_server")
    if not path.is_file():
        raise MissingError(f"moto's server is not at {path}: run 'make moto', or set NSTANCE_MOTO to its moto_server")
    return path


@dataclass(slots=True)
class Moto:
    """Calls to moto, past all faults."""

    url: str
    region: str = "us-east-1"  # of the stand-in's own calls
    _session: aiohttp.ClientSession | None = field(default=None, init=False)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CALLS), init=False)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=True)
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def forward(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        for attempt in range(CONNECT_ATTEMPTS):
            try:
                async with (
                    self._slots,
                    self._open().request(
                        method, self.url + path, headers=headers, data=body, allow_redirects=False
                    ) as reply,
                ):
                    return await reply.read(), reply.status, reply.headers
            except aiohttp.ClientConnectorError:  # nothing was sent: a busy machine
                if attempt + 1 == CONNECT_ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def call(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        """A form call. Raises Refusal."""
        answer, status, _ = await self.forward("POST", "/", headers, body)
        if status >= 300:
            if not answer.lstrip().startswith(b"<"):  # moto itself failed, for example by a race
                raise Refusal("InternalError", answer[:200].decode(errors="replace"), 500)
            root = xml.parse(answer)
            code = next((each.text for each in xml.find(root, "Code")), "") or "InternalError"
            message = next((each.text for each in xml.find(root, "Message")), "") or ""
            raise Refusal(code, message, status)
        return answer

    async def describe_instances(self, params: Mapping[str, str]) -> xml.Element:
        """All of moto's pages in one. Raises Refusal."""
        root: xml.Element | None = None
        kept = {name: value for name, value in params.items() if name not in ("Action", "Version", "MaxResults")}
        if not any(name.startswith("InstanceId.") for name in kept):
            kept["MaxResults"] = "1000"
        while True:
            page = xml.parse(await self.ec2("DescribeInstances", kept))
            if root is None:
                root = page
            else:
                xml.find(root, "reservationSet")[0].extend(xml.all_entries(page, "reservationSet"))
            token = xml.text(page, "nextToken")
            if not token:
                break
            kept["NextToken"] = token
        for old in xml.children(root, "nextToken"):
            root.remove(old)
        return root

    async def ec2(self, action: str, params: Mapping[str, str] = _NOTHING) -> bytes:
        """A call of the stand-in's own. Raises Refusal."""
        form = urllib.parse.urlencode({"Action": action, "Version": "2016-11-15", **params}).encode()
        return await self.call(form, signed("ec2", self.region))


def signed(service: str, region: str) -> dict[str, str]:
    """Headers of a form. moto reads the region and the service of a signature, and does not check it."""
    scope = f"Credential=stand-in/20260101/{region}/{service}/aws4_request"
    return {
        "content-type": "application/x-www-form-urlencoded",
        "authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0",
    }


@contextlib.asynccontextmanager
async def opened(folder: Path, *, port: int = 0, region: str = "us-east-1") -> AsyncIterator[Moto]:
    """moto's server with its log in a folder, until the block ends. Raises MissingError, RuntimeError."""
    with run_moto(find_moto(), folder, port=port) as url:
        moto = Moto(url, region)
        try:
            yield moto
        finally:
            await moto.close()


@contextlib.contextmanager
def run_moto(program: Path, folder: Path, *, port: int = 0) -> Iterator[str]:
    """A moto server with few images, which starts fast: its address. Raises RuntimeError."""
    images = folder / "images.json"
    images.write_text(json.dumps([_image(AMI, "x86_64"), _image(ARM_AMI, "arm64")]), encoding="utf-8")
    environment = {**os.environ, **_ENVIRONMENT, "MOTO_AMIS_PATH": str(images)}
    environment.pop("PYTHONPATH", None)  # it has its own environment
    log = folder / "moto.log"
    with log.open("wb") as output:
        command = [str(program), "-H", "127.0.0.1", "-p", str(port)]
        # In a session of its own: Ctrl+C is for the program that uses it, which first ends its own calls.
        process = subprocess.Popen(
            ("sh", "-c", _END_WITH_STDIN, "moto", *command),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    assert process.stdin is not None
    try:
        yield _wait_for(process, log)
    finally:
        process.stdin.close()
        process.wait()


def _wait_for(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """It says where it listens once it does."""
    for _ in range(int(START_SECONDS / 0.05)):
        found = re.search(r"Running on (http://127\.0\.0\.1:\d+)", _read(log))
        if found is not None:
            return found[1]
        if process.poll() is not None:
            raise RuntimeError(f"moto ended: {_read(log)[-500:]}")
        time.sleep(0.05)
    raise RuntimeError(f"moto did not start within {START_SECONDS:.0f} s: {_read(log)[-500:]}")


def _read(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _image(id: str, architecture: str) -> dict[str, object]:
    return {
        "ami_id": id,
        "state": "available",
        "public": True,
        "owner_id": "801119661308",
        "image_location": f"amazon/debian-{architecture}",
        "sriov": "simple",
        "root_device_type": "ebs",
        "root_device_name": "/dev/xvda",
        "description": "Debian 13",
        "image_type": "machine",
        "platform": None,
        "architecture": architecture,
        "name": f"debian-13-{architecture}",
        "virtualization_type": "hvm",
        "hypervisor": "xen",
        "creation_date": "2026-01-02T03:04:05.000Z",
    }
