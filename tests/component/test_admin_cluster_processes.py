"""`nstance-admin cluster` as a process: on a terminal, and over S3."""

import json
import os
import pathlib
import select
import subprocess

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from component import admin_cluster_world
from component.admin_cluster_world import (
    CLOCK,
    CLUSTER,
    EXAMPLE,
    HISTORY,
    KEY,
    PROGRAM,
    Bucket,
    authority,
    changed,
    clean_environment,
    run,
    s3_environment,
    write_slot,
)
from nstance.model.ids import OperatorId, TenantId
from nstance.objects import file
from nstance.objects.port import Key
from nstance.pki import names, peer
from support import s3_server

bucket = admin_cluster_world.bucket


# --- on a terminal ---------------------------------------------------------------------------------------------------


class Terminal:
    """A real one: the program cannot tell it from a person's."""

    def __init__(self, *words: str, **environment: str) -> None:
        self._ours, theirs = os.openpty()
        self._process = subprocess.Popen(
            [*PROGRAM, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=clean_environment() | {"TERM": "xterm"} | environment,
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = b""

    def expect(self, text: bytes) -> None:
        while text not in self.shown:
            assert self._read(), self.shown

    def type(self, text: bytes) -> None:
        os.write(self._ours, text)

    def end(self) -> int:
        while self._read():
            pass
        os.close(self._ours)
        return self._process.wait(timeout=30)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._ours], [], [], 30)
        assert ready, f"silent for 30 s after {self.shown!r}"
        try:
            got = os.read(self._ours, 65536)
        except OSError:  # how Linux says that the other side was closed
            return False
        self.shown += got
        return bool(got)


def test_a_typed_secret_is_not_shown(bucket: Bucket) -> None:
    flags = ("--storage-provider", "file", "--storage-bucket", str(bucket.root))
    terminal = Terminal("cluster", "secret", "put", "token", *flags, NSTANCE_ENCRYPTION_KEY=KEY)
    terminal.expect(b"Value of token: ")
    terminal.type(b"hush-hush\n")
    terminal.expect(b"Repeat")
    terminal.type(b"hush-hush\n")
    assert terminal.end() == 0
    assert b"stored secret token" in terminal.shown
    assert b"hush" not in terminal.shown
    assert bucket.ok("secret", "get", "token").stdout == "hush-hush"


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_only_on_a_terminal_that_wants_it(bucket: Bucket, environment: dict[str, str], coloured: bool) -> None:
    write_slot(bucket, 3, HISTORY[3])
    flags = ("--storage-provider", "file", "--storage-bucket", str(bucket.root))
    terminal = Terminal("cluster", "journal", "--shard", "a", *flags, **environment)
    assert terminal.end() == 0
    assert (b"\x1b[" in terminal.shown) is coloured
    assert "\x1b" not in bucket.ok("journal", "--shard", "a").stdout


# --- over S3, as real processes --------------------------------------------------------------------------------------


async def test_the_command_of_the_development_guide(tmp_path: pathlib.Path) -> None:
    """Step 10, word for word."""
    opened = await authority(file.FileStore(tmp_path), create=True)
    async with s3_server.serving(tmp_path) as endpoint:
        words = "cluster nonce --cluster-id example-cluster --storage-bucket dev --key-provider env --output -"
        code, out, err = await run(*words.split(), **s3_environment(endpoint))
    assert (code, err) == (0, "")
    assert opened.verify_operator_nonce(out.decode(), now=CLOCK.wall()).tenant == "default"


async def test_secrets_configs_operators_and_journals_over_s3(tmp_path: pathlib.Path) -> None:
    root, home = tmp_path / "bucket", tmp_path / "identity"
    store = file.FileStore(root)
    opened = await authority(store, create=True)
    for number, body in HISTORY.items():
        await store.create(Key(f"shard/a/journal/{number:020d}.json"), body)
    async with s3_server.serving(root) as endpoint:
        environment = s3_environment(endpoint) | {"NSTANCE_ADMIN_STORAGE_BUCKET": "dev"}

        async def ok(*words: str, input: bytes = b"") -> bytes:
            code, out, err = await run("cluster", *words, input=input, **environment)
            assert code == 0, err
            return out

        await ok("secret", "put", "x", input=b"\x00v")
        await ok("secret", "put", "x", input=b"\x00w")
        assert await ok("secret", "get", "x") == b"\x00w"
        assert json.loads(await ok("secret", "list", "-o", "json")) == [{"name": "x"}]
        tenants = changed(**{'"groups": {': '"tenants": {"acme": {}}, "groups": {'})
        await ok("config", "put", "--shard", "a", "-", input=EXAMPLE.read_bytes())
        await ok("config", "put", "--shard", "a", "-", input=tenants)
        assert await ok("config", "get", "--shard", "a") == tenants
        token = (await ok("nonce", "--tenant", "acme")).decode()
        assert opened.verify_operator_nonce(token, now=CLOCK.wall()).tenant == "acme"
        made = json.loads(await ok("register-operator", "--tenant", "acme", "--output-dir", str(home), "-o", "json"))
        certificate = x509.load_pem_x509_certificate((home / "tls.crt").read_bytes())
        assert peer.identify(certificate.public_bytes(Encoding.DER)) == names.Operator(
            CLUSTER, TenantId("acme"), OperatorId(made["operator"])
        )
        shown = (await ok("journal", "--shard", "a", "-o", "json")).splitlines()
        assert [json.loads(line)["slot"] for line in shown] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "check the bucket's name, AWS_ACCESS_KEY_ID"),
        ({"NSTANCE_ADMIN_STORAGE_BUCKET": "absent"}, "create the bucket, or correct its name"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "check that the store is reachable and AWS_ENDPOINT_URL is right"),
        ({"AWS_ENDPOINT_URL": "nonsense"}, "expected an endpoint like https://host:port"),
    ],
)
async def test_storage_that_refuses_is_one_line(tmp_path: pathlib.Path, changes: dict[str, str], expected: str) -> None:
    async with s3_server.serving(tmp_path) as endpoint:
        environment = s3_environment(endpoint) | {"NSTANCE_ADMIN_STORAGE_BUCKET": "dev"} | changes
        code, out, err = await run("cluster", "secret", "list", **environment)
        assert (code, out) == (1, b"")
        assert expected in err
        assert err.count("\n") == 1
        code, out, err = await run("--debug", "cluster", "secret", "list", **environment)
        assert (code, out) == (1, b"")
        assert err.startswith("Traceback")
        assert expected in err
