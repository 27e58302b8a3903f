"""`nstance-admin cluster` over a directory and over S3: the words people type, the files and objects they get."""

import asyncio
import contextlib
import json
import os
import pathlib
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from nstance.admin import main
from nstance.authority import keyset, operators
from nstance.authority import open as opening
from nstance.clock import SystemChance, SystemClock
from nstance.model.ids import ClusterId, GroupName, InstanceId, OperatorId, TenantId
from nstance.model.instance import Cause, Instance, Put, Remove, State
from nstance.objects import errors, file, memory, slots
from nstance.objects import open as stores
from nstance.objects.memory import Fate, Verb
from nstance.objects.port import Key, ObjectStore
from nstance.pki import keys, names, peer
from nstance.secretstore import sealing
from support import s3_server

CLUSTER = ClusterId("example-cluster")
KEY = "thisisatest32bytekey123456789012"
OTHER_KEY = "another-test-key-of-32-bytes-567"
PLACES = opening.Places("cluster/")
CLOCK, CHANCE = SystemClock(), SystemChance()
EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "config-dev.jsonc"
PROGRAM = (sys.executable, "-m", "nstance.admin")
ONE, TWO = InstanceId("dem-01jw51srryegh9snf9cmeh3k4q"), InstanceId("dem-01jw51srryegh9snf9cmeh3k4r")


async def authority(store: ObjectStore, *, key: str = KEY, create: bool = False) -> keyset.Authority:
    ring = sealing.Keyring(key.encode())
    return await opening.open_authority(
        store, PLACES, keyring=ring, cluster=CLUSTER, clock=CLOCK, chance=CHANCE, create=create
    )


def people(store: ObjectStore) -> operators.Operators:
    return operators.Operators(store, prefix="cluster/", cluster=CLUSTER, clock=CLOCK, chance=CHANCE)


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


# --- nonce -----------------------------------------------------------------------------------------------------------


def test_nonce_is_all_that_is_printed_and_servers_accept_it(bucket: Bucket) -> None:
    result = bucket.ok("nonce", "--expiry", "1h30m")
    assert result.stderr == ""
    opened = asyncio.run(authority(bucket.store))
    claims = opened.verify_operator_nonce(result.stdout, now=CLOCK.wall())
    assert (claims.cluster, claims.tenant, claims.expires - claims.issued) == (CLUSTER, "default", 5400)


def test_nonce_file_is_private_whole_and_without_a_line_end(bucket: Bucket, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "nonce.jwt"
    path.write_text("old")
    path.chmod(0o644)
    assert bucket.ok("nonce", "--output", str(path)).stdout == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert asyncio.run(authority(bucket.store)).verify_operator_nonce(path.read_text(), now=CLOCK.wall())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bucket", "nonce.jwt"]
    assert "no such directory" in bucket.refused("nonce", "--output", str(tmp_path / "absent" / "nonce.jwt"))


@pytest.mark.parametrize(
    ("words", "environment", "told"),
    [
        (["--cluster-id", "other"], {}, "belongs to cluster example-cluster, but --cluster-id says other"),
        ([], {"NSTANCE_ENCRYPTION_KEY": OTHER_KEY}, "set the right encryption key"),
        ([], {"NSTANCE_ENCRYPTION_KEY": ""}, "NSTANCE_ENCRYPTION_KEY is not set"),
        ([], {"NSTANCE_ENCRYPTION_KEY": "short"}, "expected an encryption key of 32 bytes"),
        (["--key-provider", "file", "--key-source", "/nowhere/key"], {}, "cannot read /nowhere/key"),
        (["--key-provider", "aws-parameter-store"], {}, "not built yet"),
        (["--storage-prefix", "elsewhere/"], {}, "give --cluster-id, or correct"),
        (["--storage-prefix", "../up"], {}, "expected a key prefix"),
        (["--prefix", "elsewhere"], {}, "give --cluster-id, or correct"),
        (["--cluster-id", "example-cluster", "--prefix", "elsewhere"], {}, "start a server of the cluster first"),
        (["--storage-provider", "gcs"], {}, "not built yet"),
        (["--storage-bucket", "/nowhere/bucket"], {}, "there is no directory '/nowhere/bucket'"),
    ],
)
def test_f72_no_nonce_without_the_right_storage_and_key(
    bucket: Bucket, words: list[str], environment: dict[str, str], told: str
) -> None:
    before = contents(bucket)
    said = bucket.refused("nonce", *words, **environment)
    assert told in said
    assert contents(bucket) == before
    for secret in (KEY, OTHER_KEY):
        assert secret not in said


@pytest.mark.parametrize(
    "words",
    [
        ["--expiry", "3"],
        ["--expiry", "0"],
        ["--expiry", "25h"],
        ["--tenant", "../x"],
        ["--cluster-id", "Bad"],
        ["--storage-provider", "ftp"],
        ["--secrets-provider", "file"],
        ["--secrets-project", "p"],
        ["--old-key", "nothing"],
        ["--unknown"],
    ],
)
def test_wrong_usage_exits_with_2(bucket: Bucket, words: list[str]) -> None:
    said = bucket.refused("nonce", *words, code=2)
    assert said.startswith("nstance-admin: ")
    assert said.endswith("see `root cluster nonce --help`\n")
    assert said.count("\n") == 1


def test_the_bucket_must_be_named() -> None:
    result = CliRunner().invoke(main.root, ["cluster", "nonce"], env={"NSTANCE_ADMIN_STORAGE_BUCKET": None})
    assert result.exit_code == 2
    assert "--storage-bucket" in result.stderr


def test_tenants_must_be_configured_in_some_shard(bucket: Bucket, tmp_path: pathlib.Path) -> None:
    assert "found no shard's config to look at" in bucket.refused("nonce", "--tenant", "acme")
    bucket.ok("config", "put", "--shard", "a", str(EXAMPLE))
    broken = bucket.root / "shard" / "b" / "config.jsonc"
    broken.parent.mkdir()
    broken.write_text("{")
    said = bucket.refused("nonce", "--tenant", "acme")
    assert "looked at a; not valid: b" in said
    with_tenant = EXAMPLE.read_text().replace('"groups": {', '"tenants": {"acme": {}},\n"groups": {', 1)
    elsewhere = Bucket(tmp_path / "elsewhere")
    elsewhere.root.mkdir()
    elsewhere.ok("config", "put", "--shard", "c", "-", input=with_tenant.encode())
    token = bucket.ok("nonce", "--tenant", "acme", "--shard-bucket", str(elsewhere.root)).stdout
    assert asyncio.run(authority(bucket.store)).verify_operator_nonce(token, now=CLOCK.wall()).tenant == "acme"
    bucket.ok("config", "put", "--shard", "c", "-", input=with_tenant.encode())
    bucket.ok("nonce", "--tenant", "acme")
    bucket.refused("register-operator", "--tenant", "beta", "--output-dir", str(tmp_path / "id"))
    assert not (tmp_path / "id").exists()


def test_everything_below_the_servers_prefix(tmp_path: pathlib.Path) -> None:
    """Blobs are bound to their name below --prefix, so it must not become a part of the name."""
    bucket = Bucket(tmp_path / "bucket")
    below = stores.open_store("file", bucket=str(bucket.root), prefix="live")
    opened = asyncio.run(authority(below, create=True))
    token = bucket.ok("nonce", "--prefix", "live/").stdout
    assert opened.verify_operator_nonce(token, now=CLOCK.wall())
    bucket.ok("config", "put", "--shard", "a", str(EXAMPLE), NSTANCE_ADMIN_PREFIX="live")
    assert (bucket.root / "live/shard/a/config.jsonc").exists()


def test_a_cluster_without_a_key(tmp_path: pathlib.Path) -> None:
    bucket = Bucket(tmp_path / "bucket")
    asyncio.run(
        opening.open_authority(
            bucket.store,
            PLACES,
            keyring=None,
            cluster=CLUSTER,
            clock=CLOCK,
            chance=CHANCE,
            create=True,
            insecure_dev=True,
        )
    )
    bucket.ok("nonce", "--insecure-dev", NSTANCE_ENCRYPTION_KEY="")
    assert "--insecure-dev" in bucket.refused("nonce")


# --- operators -------------------------------------------------------------------------------------------------------


def test_register_operator_makes_a_whole_identity(bucket: Bucket, tmp_path: pathlib.Path) -> None:
    home = tmp_path / "identity"
    result = bucket.ok("register-operator", "--output-dir", str(home), "--cert-ttl-hours", "48", "-o", "json")
    record = json.loads(result.stdout)
    assert sorted(each.name for each in home.iterdir()) == ["ca.crt", "tls.crt", "tls.key"]
    assert stat.S_IMODE((home / "tls.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    certificate = x509.load_pem_x509_certificate((home / "tls.crt").read_bytes())
    who = peer.identify(certificate.public_bytes(Encoding.DER))
    assert who == names.Operator(CLUSTER, TenantId("default"), OperatorId(record["operator"]))
    assert f"{certificate.serial_number:032x}" == record["serial"]
    private = keys.private_key_from_pem((home / "tls.key").read_bytes())
    assert certificate.public_key() == private.public_key()
    assert 47 * 3600 < certificate.not_valid_after_utc.timestamp() - CLOCK.wall() <= 48 * 3600
    assert (home / "ca.crt").read_text() == asyncio.run(authority(bucket.store)).bundle
    assert asyncio.run(people(bucket.store).is_registered(who))

    # Once more: refused without the ID, the same certificate with it.
    assert "already holds an identity" in bucket.refused("register-operator", "--output-dir", str(home))
    before = {each.name: each.read_bytes() for each in home.iterdir()}
    (home / "tls.crt").unlink()
    bucket.ok("register-operator", "--output-dir", str(home), "--operator-id", record["operator"])
    assert {each.name: each.read_bytes() for each in home.iterdir()} == before


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")
def test_openssl_accepts_the_certificate_of_its_own_key(bucket: Bucket, tmp_path: pathlib.Path) -> None:
    private, public, home = tmp_path / "own.key", tmp_path / "own.pub", tmp_path / "identity"
    openssl("genpkey", "-algorithm", "ed25519", "-out", str(private))
    openssl("pkey", "-in", str(private), "-pubout", "-out", str(public))
    bucket.ok("register-operator", "--output-dir", str(home), "--public-key-file", str(public))
    assert sorted(each.name for each in home.iterdir()) == ["ca.crt", "tls.crt"]
    openssl("verify", "-purpose", "sslclient", "-CAfile", str(home / "ca.crt"), str(home / "tls.crt"))
    assert openssl("x509", "-in", str(home / "tls.crt"), "-noout", "-pubkey") == public.read_text()


def openssl(*words: str) -> str:
    return subprocess.run(["openssl", *words], check=True, capture_output=True, text=True, timeout=30).stdout


def test_keys_that_do_not_fit_are_refused(bucket: Bucket, tmp_path: pathlib.Path) -> None:
    home, public = tmp_path / "identity", tmp_path / "key.pub"
    public.write_text("-----BEGIN PUBLIC KEY-----\nnonsense\n-----END PUBLIC KEY-----\n")
    words = ("register-operator", "--output-dir", str(home), "--public-key-file", str(public))
    assert "expected an Ed25519 public key" in bucket.refused(*words)
    public.write_text(keys.public_to_pem(keys.public_bytes(keys.generate(CHANCE))))
    home.mkdir(exist_ok=True)
    (home / "tls.key").write_text(keys.private_to_pem(keys.generate(CHANCE)))
    assert "does not belong to" in bucket.refused(*words)
    (home / "tls.key").write_text("nonsense")
    assert "expected an unencrypted Ed25519 private key" in bucket.refused(
        "register-operator", "--output-dir", str(home)
    )


def test_an_operator_id_belongs_to_one_key(bucket: Bucket, tmp_path: pathlib.Path) -> None:
    id = "opr-01jw51srryegh9snf9cmeh3k4q"
    bucket.ok("register-operator", "--operator-id", id, "--output-dir", str(tmp_path / "a"))
    words = ("register-operator", "--operator-id", id, "--output-dir", str(tmp_path / "b"))
    assert "registered with another key" in bucket.refused(*words)
    assert not (tmp_path / "b" / "tls.crt").exists()
    bucket.refused("register-operator", "--operator-id", str(ONE), "--output-dir", str(tmp_path / "c"), code=2)


def test_revoked_operators_stay_so(bucket: Bucket, tmp_path: pathlib.Path) -> None:
    home = tmp_path / "identity"
    made = json.loads(bucket.ok("register-operator", "--output-dir", str(home), "-o", "json").stdout)
    listed = json.loads(bucket.ok("operators", "-o", "json").stdout)
    assert [(each["operator"], each["revoked"]) for each in listed] == [(made["operator"], None)]
    bucket.ok("revoke-operator", "--operator-id", made["operator"])
    bucket.ok("revoke-operator", "--operator-id", made["operator"])
    assert json.loads(bucket.ok("operators", "-o", "json").stdout)[0]["revoked"] is not None
    words = ("register-operator", "--output-dir", str(home), "--operator-id", made["operator"])
    assert "was revoked" in bucket.refused(*words)
    unknown = "opr-01jw51srryegh9snf9cmeh3k4q"
    assert "is not registered" in bucket.refused("revoke-operator", "--operator-id", unknown)


# --- CA and keys -----------------------------------------------------------------------------------------------------


def test_f69_rotation_keeps_subject_and_life_and_signs_later(tmp_path: pathlib.Path) -> None:
    from nstance.pki import fields

    bucket = Bucket(tmp_path / "bucket")
    shape = fields.Subject(cn="Root of Acme", organization=("Acme", "Ops"), country=("DE",))
    asyncio.run(
        opening.open_authority(
            bucket.store,
            PLACES,
            keyring=sealing.Keyring(KEY.encode()),
            cluster=CLUSTER,
            clock=CLOCK,
            chance=CHANCE,
            create=True,
            subject=shape,
            life=1000 * 86400.0,
        )
    )
    (shown,) = json.loads(bucket.ok("ca", "show", "-o", "json").stdout)
    assert shown["use"] == "signs"
    new, old = json.loads(bucket.ok("ca", "rotate", "-o", "json").stdout)
    assert (new["use"], old["use"], old["sha256"]) == ("next", "signs", shown["sha256"])
    assert new["subject"] == old["subject"] == "CN=Root of Acme,O=Ops,O=Acme,C=DE"
    bundle = bucket.ok("ca", "show", "--pem", NSTANCE_ENCRYPTION_KEY="").stdout
    first, second = x509.load_pem_x509_certificates(bundle.encode())
    assert abs((first.not_valid_after_utc - second.not_valid_after_utc).total_seconds()) < 120
    assert "takes effect only in" in bucket.refused("ca", "rotate")
    bucket.refused("ca", "rotate", "--life", "1h", code=2)


def test_f70_the_nonce_key_is_rotated_while_vms_boot(bucket: Bucket) -> None:
    """Nonces of the old key are accepted, the new one signs when servers know it, and there are never three."""
    (shown,) = json.loads(bucket.ok("nonce-key", "show", "-o", "json").stdout)
    assert shown["use"] == "signs"
    token = bucket.ok("nonce").stdout.strip()
    new, old = json.loads(bucket.ok("nonce-key", "rotate", "-o", "json").stdout)
    assert (new["use"], old["use"], old["kid"]) == ("next", "signs", shown["kid"])
    assert new["kid"] != old["kid"]
    found = asyncio.run(authority(bucket.store))
    assert found.verify_operator_nonce(token, now=CLOCK.wall()).cluster == CLUSTER
    later = CLOCK.wall() + 1000.0
    assert next(key.kid for key in found.nonce_keys if key.signs_from <= later) == new["kid"]
    assert "wait" in bucket.refused("nonce-key", "rotate")
    assert "set the right encryption key" in bucket.refused("nonce-key", "rotate", NSTANCE_ENCRYPTION_KEY=OTHER_KEY)


def test_f71_rekey_lets_the_old_key_go(bucket: Bucket) -> None:
    bucket.ok("secret", "put", "token", input=b"value")
    new = {"NSTANCE_ENCRYPTION_KEY": OTHER_KEY, "OLD": KEY}
    assert "we have" in bucket.refused("rekey", **new)
    assert "set the right encryption key" in bucket.refused("secret", "get", "token", **new)
    assert bucket.ok("secret", "get", "token", "--old-key", "env:OLD", **new).stdout == "value"
    done = json.loads(bucket.ok("rekey", "--old-key", "env:OLD", "-o", "json", **new).stdout)
    assert [each["sealed_anew"] for each in done] == [
        "cluster/ca.sealed",
        "cluster/secret/registration-nonce.key",
        "cluster/secret/token",
    ]
    assert json.loads(bucket.ok("rekey", "-o", "json", NSTANCE_ENCRYPTION_KEY=OTHER_KEY).stdout) == []
    assert bucket.ok("secret", "get", "token", NSTANCE_ENCRYPTION_KEY=OTHER_KEY).stdout == "value"
    bucket.refused("nonce")
    bucket.ok("nonce", NSTANCE_ENCRYPTION_KEY=OTHER_KEY)


def test_rekey_of_nothing_is_no_success(empty: Bucket) -> None:
    """A mistyped prefix must not look like a finished rotation."""
    assert "start a server of the cluster first" in empty.refused("rekey", "--cluster-id", CLUSTER)


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_secrets_come_back_byte_for_byte(bucket: Bucket, tmp_path: pathlib.Path) -> None:
    value = bytes(range(256)) + b"\n"
    assert value not in bucket.ok("secret", "put", "blob", input=value).output_bytes
    assert bucket.ok("secret", "get", "blob").stdout_bytes == value
    path = tmp_path / "value"
    path.write_bytes(b"from a file\r\n")
    bucket.ok("secret", "put", "blob", "--file", str(path))
    assert bucket.ok("secret", "get", "blob").stdout_bytes == b"from a file\r\n"
    bucket.ok("secret", "put", "a.b", "--file", "-", input=b"1")
    assert json.loads(bucket.ok("secret", "list", "-o", "json").stdout) == [{"name": "a.b"}, {"name": "blob"}]
    bucket.ok("secret", "rm", "blob")
    assert "no secret 'blob'" in bucket.refused("secret", "get", "blob")
    assert "no secret 'blob'" in bucket.refused("secret", "rm", "blob")
    assert all(b"from a file" not in body for body in contents(bucket).values())


def test_secrets_that_are_refused(bucket: Bucket, tmp_path: pathlib.Path) -> None:
    before = contents(bucket)
    assert "belongs to Nstance itself" in bucket.refused("secret", "put", "registration-nonce.key", input=b"x")
    assert "belongs to Nstance itself" in bucket.refused("secret", "get", "registration-nonce.key")
    assert "belongs to Nstance itself" in bucket.refused("secret", "rm", "registration-nonce.key")
    assert "expected a secret's name" in bucket.refused("secret", "put", "../up", input=b"x")
    assert "is empty" in bucket.refused("secret", "put", "nothing", input=b"")
    assert "at most 262144 bytes" in bucket.refused("secret", "put", "huge", input=b"x" * 262145)
    assert "No such file" in bucket.refused("secret", "put", "x", "--file", str(tmp_path / "absent"))
    assert contents(bucket) == before


def test_secrets_before_the_first_server(empty: Bucket) -> None:
    assert "give --cluster-id" in empty.refused("secret", "put", "early", input=b"1")
    empty.ok("secret", "put", "early", "--cluster-id", CLUSTER, input=b"1")
    asyncio.run(authority(empty.store, create=True))
    assert empty.ok("secret", "get", "early").stdout == "1"


def test_other_secret_stores(bucket: Bucket, tmp_path: pathlib.Path) -> None:
    folder = ("--secrets-provider", "file", "--secrets-prefix", str(tmp_path / "secrets"))
    bucket.ok("secret", "put", "x", *folder, input=b"v", NSTANCE_ENCRYPTION_KEY="")
    assert (tmp_path / "secrets" / "x").read_bytes() == b"v"
    environment = {"NSTANCE_ADMIN_SECRETS_PROVIDER": "env", "NSTANCE_SECRET_DB_PASSWORD": "v"}
    assert bucket.ok("secret", "get", "db-password", **environment).stdout == "v"
    assert "read-only" in bucket.refused("secret", "put", "db-password", input=b"v", **environment)
    google = ("--secrets-provider", "google-secret-manager", "--secrets-project", "p")
    assert "not built yet" in bucket.refused("secret", "list", *google)


# --- config ----------------------------------------------------------------------------------------------------------


def changed(**replacements: str) -> bytes:
    text = EXAMPLE.read_text()
    for old, new in replacements.items():
        assert old in text
        text = text.replace(old, new)
    return text.encode()


def put(bucket: Bucket, body: bytes, *words: str) -> dict[str, object]:
    result = bucket.ok("config", "put", "--shard", "a", "-", "-o", "json", *words, input=body)
    record = json.loads(result.stdout)
    assert isinstance(record, dict)
    return record


def test_config_put_shows_what_changes_and_get_gives_it_back(empty: Bucket) -> None:
    first = put(empty, EXAMPLE.read_bytes(), "--dry-run")
    assert (first["written"], first["first"]) == (False, True)
    assert not (empty.root / "shard").exists()
    first = put(empty, EXAMPLE.read_bytes())
    assert (first["written"], first["first"]) == (True, True)
    assert first["groups"] == [{"group": "default/demo", "was": None, "size": 3, "changes": ["added"]}]
    assert empty.ok("config", "get", "--shard", "a").stdout_bytes == EXAMPLE.read_bytes()
    assert put(empty, EXAMPLE.read_bytes())["written"] is False

    grown = changed(**{'"size": 3': '"size": 5, "instance_type": "big"', '"hello"': '"good day"', '"5s"': '"6s"'})
    second = put(empty, grown)
    wanted = ["resized", "its instances will be replaced", "new files will be pushed"]
    assert second["groups"] == [{"group": "default/demo", "was": 3, "size": 5, "changes": wanted}]
    assert second["blocks"] == ["shard", "defaults"]
    third = put(empty, changed(**{'"demo": { "template"': '"other": { "drain_timeout": "1s", "template"'}))
    assert [(each["group"], each["changes"]) for each in third["groups"]] == [  # type: ignore[attr-defined]
        ("default/demo", ["removed: its instances will be deleted"]),
        ("default/other", ["added"]),
    ]
    fourth = put(empty, changed(**{'"demo": { "template"': '"other": { "drain_timeout": "2s", "template"'}))
    assert [each["changes"] for each in fourth["groups"]] == [["other settings"]]  # type: ignore[attr-defined]
    table = empty.ok("config", "put", "--shard", "a", str(EXAMPLE))
    assert re.search(r"default/demo +3 +added", table.stdout)
    assert "wrote shard/a/config.jsonc" in table.stderr


def test_a_dry_run_makes_no_bucket(tmp_path: pathlib.Path) -> None:
    absent = Bucket(tmp_path / "absent")
    assert "there is no directory" in absent.refused("config", "put", "--shard", "a", str(EXAMPLE), "--dry-run")
    assert not absent.root.exists()
    put(absent, EXAMPLE.read_bytes())
    assert (absent.root / "shard/a/config.jsonc").exists()


def test_b27_all_faults_of_a_config_are_shown_and_nothing_is_written(empty: Bucket) -> None:
    bad = changed(**{'"size": 3': '"sizes": 3', '"kind": "dem"': '"kind": "demo"', '"5s"': '"5"'})
    result = empty("config", "put", "--shard", "a", "-", input=bad)
    assert result.exit_code == 1
    assert re.search(r"the configuration has \d+ problems:", result.stderr)
    for fault in ("groups.default.demo.sizes", "templates.demo.kind", "shard.health_check_interval", "line "):
        assert fault in result.stderr
    assert not (empty.root / "shard").exists()


def test_configs_of_another_shard_or_cluster_are_refused(bucket: Bucket) -> None:
    other_shard = changed(**{'"infra": {': '"id": "b", "infra": {'})
    said = bucket("config", "put", "--shard", "a", "-", input=other_shard)
    assert said.exit_code == 1
    assert 'expected the shard that this server serves, "a", found "b"' in said.stderr
    words = ("config", "put", "--shard", "a", "-")
    other = changed(**{'"id": "example-cluster"': '"id": "other"'})
    assert "is of cluster other, but the storage belongs to example-cluster" in bucket.refused(*words, input=other)
    said = bucket.refused(*words, "--cluster-id", "other", input=other)
    assert "belongs to cluster example-cluster, but --cluster-id says other" in said
    assert "there is no shard/a/config.jsonc" in bucket.refused("config", "get", "--shard", "a")
    bucket.refused("config", "put", "--shard", "a", "/nowhere/config", code=2)


def test_a_shard_keeps_its_cluster_also_before_there_is_a_ca(empty: Bucket) -> None:
    put(empty, EXAMPLE.read_bytes())
    other = changed(**{'"id": "example-cluster"': '"id": "other"'})
    said = empty.refused("config", "put", "--shard", "a", "-", input=other)
    assert "a shard cannot change its cluster" in said


def test_groups_of_the_api_must_fit_the_new_config(empty: Bucket) -> None:
    put(empty, EXAMPLE.read_bytes())
    groups = empty.root / "shard" / "a" / "groups.jsonc"
    groups.write_text('{"default": {"more": {"template": "demo", "size": 1}, "demo": {"size": 7}}}')
    without = changed(
        **{'"demo": {\n      "kind"': '"renamed": {\n      "kind"', '"template": "demo",': '"template": "renamed",'}
    )
    result = empty("config", "put", "--shard", "a", "-", input=without)
    assert result.exit_code == 1
    assert "do not fit this config" in result.stderr
    # What the API said wins, so a new size in the file changes nothing.
    assert put(empty, changed(**{'"size": 3': '"size": 4'}))["groups"] == []
    groups.write_text("{")
    assert empty("config", "put", "--shard", "a", str(EXAMPLE)).exit_code == 1


def test_an_invalid_config_can_be_replaced(empty: Bucket) -> None:
    path = empty.root / "shard" / "a" / "config.jsonc"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert put(empty, EXAMPLE.read_bytes())["compared"] is False
    assert path.read_bytes() == EXAMPLE.read_bytes()


@pytest.mark.parametrize("present", [True, False])
def test_a_config_written_meanwhile_is_not_overwritten(monkeypatch: pytest.MonkeyPatch, present: bool) -> None:
    store, key = memory.MemoryStore(CLOCK), Key("shard/a/config.jsonc")
    theirs = changed(**{'"size": 3': '"size": 9'})

    async def meddle(verb: Verb, _: str) -> Fate:
        if verb is Verb.REPLACE:
            await store.replace(key, theirs, seen=(await store.get(key)).version)
        elif verb is Verb.CREATE:
            await store.create(key, theirs)
        return Fate()

    async def prepare() -> None:
        if present:
            await store.create(key, EXAMPLE.read_bytes())

    asyncio.run(prepare())
    monkeypatch.setattr(stores, "open_store", lambda *_, **__: store.view(meddle))
    mine = changed(**{'"size": 3': '"size": 1'})
    result = CliRunner().invoke(
        main.root, ["cluster", "config", "put", "--shard", "a", "-", "--storage-bucket", "b"], input=mine
    )
    assert result.exit_code == 1
    assert "written by somebody else meanwhile; nothing was changed" in result.stderr
    assert store.contents()[key] == theirs


# --- journal ---------------------------------------------------------------------------------------------------------


def instance(id: InstanceId, state: State, cause: Cause | None = None) -> Instance:
    return Instance(
        id=id, tenant=TenantId("default"), group=GroupName("demo"), state=state, created=1_800_000_000.0, cause=cause
    )


def slot(number: int, *entries: slots.Entry, epoch: int = 1) -> bytes:
    encoded = [slots.encode_entry(entry) for entry in entries]
    return slots.encode_slot(number=number, epoch=epoch, op=f"op{number}", at=1_800_000_000.0 + number, entries=encoded)


HISTORY = {
    1: slot(1),
    2: slot(2, slots.Entry(id="e2", changes=(Put(instance(ONE, State.RUNNING)),))),
    3: slot(
        3,
        slots.Entry(
            id="e3",
            reason=(slots.Why("gone", "its VM is \x1b[31mgone", str(ONE)),),
            changes=(Put(instance(ONE, State.DELETING, Cause.GONE)), Put(instance(TWO, State.PENDING))),
        ),
        epoch=2,
    ),
    4: slot(4, slots.Entry(id="e4", changes=(Remove(ONE),)), epoch=2),
}


def write_slot(bucket: Bucket, number: int, body: bytes) -> None:
    asyncio.run(bucket.store.create(Key(f"shard/a/journal/{number:020d}.json"), body))


def test_journal_for_people(empty: Bucket) -> None:
    for number, body in HISTORY.items():
        write_slot(empty, number, body)
    assert empty.ok("journal", "--shard", "a").stdout.splitlines() == [
        "slot 1  2027-01-15T08:00:01Z  epoch 1  a new leader begins",
        "slot 2  2027-01-15T08:00:02Z  epoch 1",
        f"    {ONE}  default/demo  running",
        "slot 3  2027-01-15T08:00:03Z  epoch 2",
        f"  gone: its VM is \\x1b[31mgone  ({ONE})",
        f"    {ONE}  default/demo  running → deleting (gone)",
        f"    {TWO}  default/demo  pending",
        "slot 4  2027-01-15T08:00:04Z  epoch 2",
        f"    {ONE}  deleting → removed",
    ]


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ([], [1, 2, 3, 4]),
        (["--limit", "2"], [3, 4]),
        (["--limit", "0"], []),
        (["--from", "2"], [2, 3, 4]),
        (["--from", "2", "--limit", "2"], [2, 3]),
        (["--from", "9"], []),
    ],
)
def test_a_part_of_the_journal_for_programs(empty: Bucket, words: list[str], numbers: list[int]) -> None:
    for number, body in HISTORY.items():
        write_slot(empty, number, body)
    (empty.root / "shard" / "a" / "config.jsonc").write_bytes(EXAMPLE.read_bytes())
    shown = [json.loads(line) for line in empty.ok("journal", "--shard", "a", "-o", "json", *words).stdout.splitlines()]
    assert [each["slot"] for each in shown] == numbers
    for each in shown:
        if each["slot"] == 3:
            assert each["entries"][0]["reasons"][0]["code"] == "gone"
            assert [change["state"] for change in each["entries"][0]["changes"]] == ["deleting", "pending"]


def test_damage_is_named_and_what_lies_behind_it_is_shown(empty: Bucket) -> None:
    bodies = dict(HISTORY)
    bodies[2] = bodies[2].replace(b"running", b"pending")
    del bodies[3]
    bodies[5] = slot(5, epoch=1)
    bodies[5000] = slot(5000, epoch=2)
    for number, body in bodies.items():
        write_slot(empty, number, body)
    result = empty("journal", "--shard", "a", "-o", "json")
    assert result.exit_code == 1
    shown = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["slot"], "damaged" in each) for each in shown] == [
        (1, False),
        (2, True),
        (3, True),
        (4, False),
        (5, True),
        (5, False),
        (6, True),
        (5000, False),
    ]
    assert "checksum" in shown[1]["damaged"]
    assert "journal slot 3 is missing" in shown[2]["damaged"]
    assert "epoch 1 after 2" in shown[4]["damaged"]
    assert "slots 6 to 4999 are missing" in shown[6]["damaged"]
    assert result.stderr.endswith("is damaged at slot 2, 3, 5, 6; restore it from a backup\n")
    assert "slot 2  DAMAGED  journal slot 2 does not have the checksum" in empty("journal", "--shard", "a").stdout


def test_removed_slots_and_unknown_shards(empty: Bucket) -> None:
    for number in (3, 4):
        write_slot(empty, number, HISTORY[number])
    result = empty.ok("journal", "--shard", "a", "--from", "1", "-o", "yaml")
    assert "slots before 3 were removed" in result.stderr
    assert result.stdout.count("---\n") == 2
    assert "there is no shard b in file store" in (said := empty.refused("journal", "--shard", "b"))
    assert "(there are: a)" in said


async def test_following_goes_on_until_interrupted(tmp_path: pathlib.Path) -> None:
    bucket = Bucket(tmp_path)
    store = bucket.store

    async def write(number: int) -> None:
        await store.create(Key(f"shard/a/journal/{number:020d}.json"), HISTORY[number])

    await write(1)
    words = ("journal", "--shard", "a", "--follow", "-o", "json", "--storage-provider", "file")
    async with started("cluster", *words, "--storage-bucket", str(tmp_path)) as process:
        assert process.stdout is not None
        for number in (1, 2, 3):
            async with asyncio.timeout(30):
                assert json.loads(await process.stdout.readline())["slot"] == number
            if number < 3:
                await write(number + 1)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            out, err = await process.communicate()
    assert (process.returncode, out, err) == (0, b"", b"")


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
    return {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "NSTANCE_"))}


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
    ("changes", "told"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "check the bucket's name, AWS_ACCESS_KEY_ID"),
        ({"NSTANCE_ADMIN_STORAGE_BUCKET": "absent"}, "create the bucket, or correct its name"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "is the store reachable, and AWS_ENDPOINT_URL right?"),
        ({"AWS_ENDPOINT_URL": "nonsense"}, "the endpoint must be like https://host:port"),
    ],
)
async def test_storage_that_refuses_is_one_line(tmp_path: pathlib.Path, changes: dict[str, str], told: str) -> None:
    async with s3_server.serving(tmp_path) as endpoint:
        environment = s3_environment(endpoint) | {"NSTANCE_ADMIN_STORAGE_BUCKET": "dev"} | changes
        code, out, err = await run("cluster", "secret", "list", **environment)
        assert (code, out) == (1, b"")
        assert told in err
        assert err.count("\n") == 1
        code, out, err = await run("--debug", "cluster", "secret", "list", **environment)
        assert (code, out) == (1, b"")
        assert err.startswith("Traceback")
        assert told in err


def contents(bucket: Bucket) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in _files(bucket.root)}


def _files(root: pathlib.Path) -> Iterator[pathlib.Path]:
    return (path for path in sorted(root.rglob("*")) if path.is_file() and ".nstance" not in path.parts)


def test_storage_errors_are_told_apart() -> None:
    from nstance.admin import failures

    assert "may have been done" in failures.explain(errors.Unknown("put x: no answer"))
    assert "then try again" in failures.explain(errors.Conflict("put x"))
    assert failures.explain(errors.Unavailable("get x")) == "get x; try again"
    assert "--debug" in failures.explain(RuntimeError("surprise"))
