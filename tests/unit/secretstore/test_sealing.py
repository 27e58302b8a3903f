import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.clock import SystemRng
from nstance.model.ids import ClusterId
from nstance.secretstore import errors, keys, kinds, sealing
from support.key_clients import key_clients

CLUSTER = ClusterId("prod")
OLD, NEW, OTHER = b"o" * 32, b"n" * 32, b"x" * 32
CHANCE = SystemRng()
SECRET = b"very secret value"


def seal(sealer: sealing.Sealer, plain: bytes = SECRET, name: str = "cluster/secret/a") -> bytes:
    return sealer.seal(plain, cluster=CLUSTER, name=name, rng=CHANCE)


@given(st.binary(max_size=300))
def test_round_trip(plain: bytes) -> None:
    for sealer in (sealing.Keyring(NEW), sealing.Unsealed()):
        blob = seal(sealer, plain)
        assert sealer.open(blob, cluster=CLUSTER, name="cluster/secret/a") == plain
        assert sealer.is_current(blob)


def test_no_two_blobs_are_equal_and_none_shows_the_secret() -> None:
    ring = sealing.Keyring(NEW)
    assert seal(ring) != seal(ring)
    assert SECRET not in seal(ring)
    assert seal(sealing.Unsealed()) != seal(sealing.Unsealed())


def test_old_keys_open_but_do_not_seal() -> None:
    blob = seal(sealing.Keyring(OLD))
    ring = sealing.Keyring(NEW, (OTHER, OLD))
    assert ring.open(blob, cluster=CLUSTER, name="cluster/secret/a") == SECRET
    assert not ring.is_current(blob)
    with pytest.raises(errors.DecryptionError):
        sealing.Keyring(OLD).open(seal(ring), cluster=CLUSTER, name="cluster/secret/a")


def test_blobs_cannot_be_swapped() -> None:
    ring = sealing.Keyring(NEW)
    blob = seal(ring)
    for cluster, name in ((ClusterId("other"), "cluster/secret/a"), (CLUSTER, "cluster/secret/b"), (CLUSTER, "a")):
        with pytest.raises(errors.DecryptionError):
            ring.open(blob, cluster=cluster, name=name)


def test_a_wrong_key_is_named_by_its_id_only() -> None:
    with pytest.raises(errors.DecryptionError) as caught:
        sealing.Keyring(NEW, (OTHER,)).open(seal(sealing.Keyring(OLD)), cluster=CLUSTER, name="cluster/secret/a")
    text = str(caught.value)
    for key in (OLD, NEW, OTHER):
        assert sealing.key_id(key).hex() in text
        assert key.hex() not in text
        assert key.decode() not in text
    assert SECRET.decode() not in text


def test_plain_text_is_refused_by_whoever_has_a_key_and_the_other_way_round() -> None:
    with pytest.raises(errors.DecryptionError, match="--insecure-dev"):
        sealing.Keyring(NEW).open(seal(sealing.Unsealed()), cluster=CLUSTER, name="cluster/secret/a")
    with pytest.raises(errors.DecryptionError, match="no encryption key is configured"):
        sealing.Unsealed().open(seal(sealing.Keyring(NEW)), cluster=CLUSTER, name="cluster/secret/a")


@given(st.data())
def test_a_damaged_blob_never_opens(data: st.DataObject) -> None:
    ring = sealing.Keyring(NEW)
    blob = bytearray(seal(ring))
    if data.draw(st.booleans()):
        blob[data.draw(st.integers(0, len(blob) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del blob[data.draw(st.integers(0, len(blob) - 1)) :]
    with pytest.raises(errors.DecryptionError):
        ring.open(bytes(blob), cluster=CLUSTER, name="cluster/secret/a")


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda tail: sealing.MAGIC + tail))
def test_no_input_breaks_open(blob: bytes) -> None:
    with pytest.raises(errors.DecryptionError):
        sealing.Keyring(NEW).open(blob, cluster=CLUSTER, name="x")


def test_a_newer_version_says_so() -> None:
    blob = bytearray(seal(sealing.Keyring(NEW)))
    blob[len(sealing.MAGIC)] = 2
    for sealer in (sealing.Keyring(NEW), sealing.Unsealed()):
        with pytest.raises(errors.DecryptionError, match="version 2"):
            sealer.open(bytes(blob), cluster=CLUSTER, name="cluster/secret/a")


def test_keys_do_not_show_in_reprs() -> None:
    assert "nnn" not in repr(sealing.Keyring(NEW, (OLD,)))
    assert "ooo" not in repr(sealing.Keyring(NEW, (OLD,)))


KEY = bytes(range(200, 232))


@pytest.mark.parametrize(
    "given",
    [
        KEY,
        KEY + b"\n",
        KEY.hex(),
        KEY.hex().upper() + "\n",
        KEY.hex().encode(),
        base64.b64encode(KEY),
        base64.b64encode(KEY).decode().rstrip("="),
        base64.urlsafe_b64encode(KEY).decode() + "\r\n",
        " " + base64.b64encode(KEY).decode() + " ",
    ],
)
def test_spellings_of_a_key(given: str | bytes) -> None:
    assert sealing.parse_key(given) == KEY


def test_raw_text_of_32_characters_is_a_key() -> None:
    assert sealing.parse_key("0123456789abcdef0123456789abcdef") == b"0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    "given", ["", "short", KEY[:31], KEY + b"x", KEY.hex()[:-2], KEY.hex() + "00", "z" * 64, "\udcff"]
)
def test_other_keys_are_refused_without_showing_them(given: str | bytes) -> None:
    with pytest.raises(errors.BadKeyError, match="expected an encryption key of 32 bytes") as caught:
        sealing.parse_key(given)
    if given:
        assert str(given) not in str(caught.value)


def test_a_ring_takes_only_keys_of_32_bytes() -> None:
    for ring in ((b"k" * 31, ()), (NEW, (b"k" * 33,))):
        with pytest.raises(errors.BadKeyError):
            sealing.Keyring(*ring)


CLIENTS = key_clients()


async def test_key_sources(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    assert await keys.read_key("file", str(path), environment={}, clients=CLIENTS) == (KEY,)
    assert await keys.read_key("env", environment={"NSTANCE_ENCRYPTION_KEY": KEY.hex()}, clients=CLIENTS) == (KEY,)
    assert await keys.read_key("env", "MY_KEY", environment={"MY_KEY": KEY.hex()}, clients=CLIENTS) == (KEY,)


async def test_a_ring_of_keys_from_several_sources(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    ring = await keys.read_keyring(
        keys.KeyLocation("env", "MY_KEY"),
        [keys.KeyLocation("file", str(path))],
        environment={"MY_KEY": NEW.hex()},
        clients=CLIENTS,
    )
    assert (ring.current, ring.old) == (NEW, (KEY,))


@pytest.mark.parametrize(
    ("provider", "source", "says"),
    [
        ("env", "", "NSTANCE_ENCRYPTION_KEY is not set"),
        ("env", "WRONG", "environment variable WRONG: expected an encryption key of 32 bytes"),
        ("file", "", "needs the path"),
        ("file", "/does/not/exist", "failed to read /does/not/exist: No such file"),
        ("aws-secrets-manager", "", "needs the name of the secret"),
        ("aws-parameter-store", "", "needs the name of the secret"),
        ("aws-kms", "no base64!", "expected an encrypted data key in base64"),
        ("google-secret-manager", "", "needs the name of the secret"),
        ("google-kms", "no key", "expected projects/"),
        ("vault", "x", "expected a key provider of env, file"),
    ],
)
async def test_key_sources_that_have_none(provider: str, source: str, says: str) -> None:
    with pytest.raises(errors.BadKeyError, match=says):
        await keys.read_key(provider, source, environment={"WRONG": "hunter2"}, clients=CLIENTS)


@pytest.mark.parametrize("provider", ["aws-secrets-manager", "aws-parameter-store"])
async def test_without_a_region_aws_is_not_asked(provider: str) -> None:
    with pytest.raises(errors.PermanentError, match=r"set cluster\.secrets\.region or AWS_REGION"):
        await keys.read_key(provider, "x", environment={}, clients=CLIENTS)


def test_without_a_key_nothing_is_sealed_unless_requested() -> None:
    ring = sealing.Keyring(NEW)
    assert kinds.sealer(ring, insecure_dev=True) is ring
    assert isinstance(kinds.sealer(None, insecure_dev=True), sealing.Unsealed)
    with pytest.raises(errors.BadKeyError, match="--insecure-dev"):
        kinds.sealer(None, insecure_dev=False)
