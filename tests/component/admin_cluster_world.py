"""`nstance-admin cluster` over a directory and over S3: the words people type, the objects they get."""

import asyncio
import contextlib
import os
import pathlib
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
from click.testing import CliRunner, Result

from nstance.admin import main
from nstance.authority import keyset, operators
from nstance.authority import open as opening
from nstance.clock import SystemClock, SystemRng
from nstance.model.ids import ClusterId, GroupName, InstanceId, TenantId
from nstance.model.instance import Cause, Instance, Put, Remove, State
from nstance.objects import file, slots
from nstance.objects.port import Key, ObjectStore
from nstance.secretstore import sealing
from support import s3_server
from support.journals import slot_body

CLUSTER = ClusterId("example-cluster")
KEY = "thisisatest32bytekey123456789012"
OTHER_KEY = "another-test-key-of-32-bytes-567"
PLACES = opening.Places("cluster/")
CLOCK, CHANCE = SystemClock(), SystemRng()
EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "config-dev.jsonc"
PROGRAM = (sys.executable, "-m", "nstance.admin")
ONE, TWO = InstanceId("dem-01jw51srryegh9snf9cmeh3k4q"), InstanceId("dem-01jw51srryegh9snf9cmeh3k4r")


async def authority(store: ObjectStore, *, key: str = KEY, create: bool = False) -> keyset.Authority:
    ring = sealing.Keyring(key.encode())
    vault = opening.open_vault(store, keyring=ring, cluster=CLUSTER, rng=CHANCE)
    return await opening.open_authority(vault, PLACES, clock=CLOCK, create=create)


def people(store: ObjectStore) -> operators.Operators:
    return operators.Operators(store, prefix="cluster/", cluster=CLUSTER, clock=CLOCK, rng=CHANCE)


@dataclass
class Bucket:
    """A cluster in a directory, and the command line that looks at it."""

    root: pathlib.Path

    def __call__(self, *words: str, input: bytes | None = None, **environment: str) -> Result:
        own = {
            "NSTANCE_ADMIN_STORAGE_PROVIDER": "file",
            "NSTANCE_ADMIN_STORAGE_BUCKET": str(self.root),
            "NSTANCE_ENCRYPTION_KEY": KEY,
        }
        return CliRunner().invoke(main.root, ["cluster", *words], input=input, env=own | environment)

    def ok(self, *words: str, input: bytes | None = None, **environment: str) -> Result:
        result = self(*words, input=input, **environment)
        assert result.exit_code == 0, result.output
        return result

    def refused(self, *words: str, input: bytes | None = None, code: int = 1, **environment: str) -> str:
        """What was said about it: for failures exactly one line, and nothing on standard output."""
        result = self(*words, input=input, **environment)
        assert result.exit_code == code, result.output
        assert result.stdout == ""
        if code == 1:
            assert result.stderr.startswith("nstance-admin: ")
            assert result.stderr.count("\n") == 1
        return result.stderr

    @property
    def store(self) -> file.FileStore:
        return file.FileStore(self.root)


@pytest.fixture
def bucket(tmp_path: pathlib.Path) -> Bucket:
    made = Bucket(tmp_path / "bucket")
    asyncio.run(authority(made.store, create=True))
    return made


@pytest.fixture
def empty(tmp_path: pathlib.Path) -> Bucket:
    (tmp_path / "bucket").mkdir()
    return Bucket(tmp_path / "bucket")


def changed(**replacements: str) -> bytes:
    text = EXAMPLE.read_text()
    for old, new in replacements.items():
        assert old in text
        text = text.replace(old, new)
    return text.encode()


def instance(id: InstanceId, state: State, cause: Cause | None = None) -> Instance:
    return Instance(
        id=id, tenant=TenantId("default"), group=GroupName("demo"), state=state, created=1_800_000_000.0, cause=cause
    )


def slot(number: int, *entries: slots.Entry, epoch: int = 1) -> bytes:
    encoded = [slots.encode_entry(entry) for entry in entries]
    return slot_body(number=number, epoch=epoch, op=f"op{number}", at=1_800_000_000.0 + number, entries=encoded)


HISTORY = {
    1: slot(1),
    2: slot(2, slots.Entry(id="e2", changes=(Put(instance(ONE, State.RUNNING)),))),
    3: slot(
        3,
        slots.Entry(
            id="e3",
            reason=(slots.LoggedReason("gone", "its VM is \x1b[31mgone", str(ONE)),),
            changes=(Put(instance(ONE, State.DELETING, Cause.GONE)), Put(instance(TWO, State.PENDING))),
        ),
        epoch=2,
    ),
    4: slot(4, slots.Entry(id="e4", changes=(Remove(ONE),)), epoch=2),
}


def write_slot(bucket: Bucket, number: int, body: bytes) -> None:
    asyncio.run(bucket.store.create(Key(f"shard/a/journal/{number:020d}.json"), body))


@contextlib.asynccontextmanager
async def started(*words: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        *words,
        env=clean_environment() | environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def clean_environment() -> dict[str, str]:
    ours = ("AWS_", "NSTANCE_", "NO_COLOR", "FORCE_COLOR")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


async def run(*words: str, input: bytes = b"", **environment: str) -> tuple[int, bytes, str]:
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        *words,
        env=clean_environment() | environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate(input)
    assert process.returncode is not None
    return process.returncode, out, err.decode()


def s3_environment(endpoint: str) -> dict[str, str]:
    return {
        **s3_server.CREDENTIALS,
        "AWS_ENDPOINT_URL": endpoint.replace("127.0.0.1", "localhost"),
        "AWS_S3_USE_PATH_STYLE": "true",
        "NSTANCE_ENCRYPTION_KEY": KEY,
    }


def contents(bucket: Bucket) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in _files(bucket.root)}


def _files(root: pathlib.Path) -> Iterator[pathlib.Path]:
    return (path for path in sorted(root.rglob("*")) if path.is_file() and ".nstance" not in path.parts)
