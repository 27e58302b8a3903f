"""`nstance-admin cluster` over a directory: nonces, operators, the CA, keys and secrets."""

import asyncio
import json
import pathlib
import shutil
import stat
import subprocess

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from component import admin_cluster_world
from component.admin_cluster_world import (
    CHANCE,
    CLOCK,
    CLUSTER,
    EXAMPLE,
    KEY,
    ONE,
    OTHER_KEY,
    PLACES,
    Bucket,
    authority,
    changed,
    contents,
    people,
)
from nstance.admin import main
from nstance.authority import open as opening
from nstance.model.ids import OperatorId, TenantId
from nstance.objects import open as stores
from nstance.pki import keys, names, peer
from nstance.secretstore import sealing

bucket = admin_cluster_world.bucket
empty = admin_cluster_world.empty


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
    ("words", "environment", "expected"),
    [
        (["--cluster-id", "other"], {}, "belongs to cluster example-cluster, but --cluster-id is other"),
        ([], {"NSTANCE_ENCRYPTION_KEY": OTHER_KEY}, "set the right encryption key"),
        ([], {"NSTANCE_ENCRYPTION_KEY": ""}, "NSTANCE_ENCRYPTION_KEY is not set"),
        ([], {"NSTANCE_ENCRYPTION_KEY": "short"}, "expected an encryption key of 32 bytes"),
        (["--key-provider", "file", "--key-source", "/nowhere/key"], {}, "failed to read /nowhere/key"),
        (["--key-provider", "aws-parameter-store"], {}, "needs the name of the secret"),
        (
            ["--key-provider", "google-secret-manager", "--key-source", "x", "--secrets-project", "p"],
            {"GCE_METADATA_HOST": "127.0.0.1:1", "HOME": "/nonexistent"},
            "no credentials for Google Cloud",
        ),
        (["--storage-prefix", "elsewhere/"], {}, "give --cluster-id, or correct"),
        (["--storage-prefix", "../up"], {}, "expected a key prefix"),
        (["--prefix", "elsewhere"], {}, "give --cluster-id, or correct"),
        (["--cluster-id", "example-cluster", "--prefix", "elsewhere"], {}, "start a server of the cluster first"),
        (["--storage-provider", "gcs"], {"STORAGE_EMULATOR_HOST": "127.0.0.1:1"}, "cannot connect"),
        (["--storage-bucket", "/nowhere/bucket"], {}, "there is no directory '/nowhere/bucket'"),
    ],
)
def test_no_nonce_without_the_right_storage_and_key(
    bucket: Bucket, words: list[str], environment: dict[str, str], expected: str
) -> None:
    before = contents(bucket)
    message = bucket.refused("nonce", *words, **environment)
    assert expected in message
    assert contents(bucket) == before
    for secret in (KEY, OTHER_KEY):
        assert secret not in message


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
    message = bucket.refused("nonce", *words, code=2)
    assert message.startswith("nstance-admin: ")
    assert message.endswith("see `root cluster nonce --help`\n")
    assert message.count("\n") == 1


def test_the_bucket_must_be_named() -> None:
    result = CliRunner().invoke(main.root, ["cluster", "nonce"], env={"NSTANCE_ADMIN_STORAGE_BUCKET": None})
    assert result.exit_code == 2
    assert "--storage-bucket" in result.stderr


def test_tenants_must_be_configured_in_some_shard(bucket: Bucket, tmp_path: pathlib.Path) -> None:
    assert "found no shard's config" in bucket.refused("nonce", "--tenant", "acme")
    bucket.ok("config", "put", "--shard", "a", str(EXAMPLE))
    broken = bucket.root / "shard" / "b" / "config.jsonc"
    broken.parent.mkdir()
    broken.write_text("{")
    message = bucket.refused("nonce", "--tenant", "acme")
    assert "checked a; invalid: b" in message
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
    vault = opening.open_vault(bucket.store, keyring=None, cluster=CLUSTER, rng=CHANCE, insecure_dev=True)
    asyncio.run(opening.open_authority(vault, PLACES, clock=CLOCK, create=True))
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
    assert "already has an identity" in bucket.refused("register-operator", "--output-dir", str(home))
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


def test_an_operator_of_another_tenant_is_found_and_revoked(bucket: Bucket, tmp_path: pathlib.Path) -> None:
    tenants = changed(**{'"groups": {': '"tenants": {"acme": {}}, "groups": {'})
    bucket.ok("config", "put", "--shard", "a", "-", input=tenants)
    home = tmp_path / "identity"
    words = ("register-operator", "--tenant", "acme", "--output-dir", str(home), "-o", "json")
    id = json.loads(bucket.ok(*words).stdout)["operator"]
    assert f"would revoke {id} of tenant acme" in bucket.ok("revoke-operator", "--operator-id", id, "--dry-run").stderr
    assert f"revoked {id} of tenant acme" in bucket.ok("revoke-operator", "--operator-id", id).stderr
    [known] = json.loads(bucket.ok("operators", "-o", "json").stdout)
    assert known["revoked"] is not None
    # Where two tenants have one of this name, somebody has to say which is meant.
    bucket.ok("register-operator", "--operator-id", id, "--output-dir", str(tmp_path / "other"))
    assert "is registered for acme, default" in bucket.refused("revoke-operator", "--operator-id", id)
    bucket.ok("revoke-operator", "--operator-id", id, "--tenant", "default")
    assert all(each["revoked"] for each in json.loads(bucket.ok("operators", "-o", "json").stdout))


# --- CA and keys -----------------------------------------------------------------------------------------------------


def test_rotation_keeps_subject_and_life_and_signs_later(tmp_path: pathlib.Path) -> None:
    from nstance.pki import fields

    bucket = Bucket(tmp_path / "bucket")
    shape = fields.Subject(cn="Root of Acme", organization=("Acme", "Ops"), country=("DE",))
    keyring, life = sealing.Keyring(KEY.encode()), 1000 * 86400.0
    vault = opening.open_vault(bucket.store, keyring=keyring, cluster=CLUSTER, rng=CHANCE)
    asyncio.run(opening.open_authority(vault, PLACES, clock=CLOCK, create=True, subject=shape, life=life))
    (shown,) = json.loads(bucket.ok("ca", "show", "-o", "json").stdout)
    assert shown["use"] == "signs"
    new, old = json.loads(bucket.ok("ca", "rotate", "-o", "json").stdout)
    assert (new["use"], old["use"], old["sha256"]) == ("next", "signs", shown["sha256"])
    assert new["subject"] == old["subject"] == "CN=Root of Acme,O=Ops,O=Acme,C=DE"
    bundle = bucket.ok("ca", "show", "--pem", NSTANCE_ENCRYPTION_KEY="").stdout
    first, second = x509.load_pem_x509_certificates(bundle.encode())
    assert abs((first.not_valid_after_utc - second.not_valid_after_utc).total_seconds()) < 120
    assert "takes effect in" in bucket.refused("ca", "rotate")
    bucket.refused("ca", "rotate", "--life", "1h", code=2)


def test_the_nonce_key_is_rotated_while_vms_boot(bucket: Bucket) -> None:
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


def test_rekey_lets_the_old_key_go(bucket: Bucket) -> None:
    bucket.ok("secret", "put", "token", input=b"value")
    new = {"NSTANCE_ENCRYPTION_KEY": OTHER_KEY, "OLD": KEY}
    assert "this program has" in bucket.refused("rekey", **new)
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
    nowhere = {"GCE_METADATA_HOST": "127.0.0.1:1", "HOME": "/nonexistent"}
    assert "no credentials for Google Cloud" in bucket.refused("secret", "list", *google, **nowhere)


def test_storage_errors_have_distinct_advice() -> None:
    from nstance.admin import errors
    from nstance.objects import errors as storage

    assert "may have been applied" in errors.explain(storage.UnknownOutcomeError("put x: no answer"))
    assert "then try again" in errors.explain(storage.ConflictError("put x"))
    assert errors.explain(storage.UnavailableError("get x")) == "get x; try again"
    assert "--debug" in errors.explain(RuntimeError("surprise"))
