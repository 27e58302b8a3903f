"""Opening a store by its name in a config."""

import pathlib
import subprocess
import sys

import pytest

from nstance.objects import errors, memory, open
from nstance.objects.port import Key


async def test_a_directory_is_a_bucket(tmp_path: pathlib.Path) -> None:
    store = open.open_store("file", bucket=str(tmp_path / "made"), prefix="/clusters/a/")
    await store.create(Key("k"), b"one")
    assert (tmp_path / "made/clusters/a/k").read_bytes() == b"one"
    assert [key async for key in store.list("")] == ["k"]
    assert "made" in repr(store)
    assert "clusters/a" in repr(store)
    await store.close()


def test_memory_needs_no_bucket() -> None:
    assert isinstance(open.open_store("memory", bucket=""), memory.MemoryStore)


@pytest.mark.parametrize(
    ("provider", "bucket", "message"),
    [
        ("gcs", "", "needs a bucket"),
        ("azure", "b", "one of s3, gcs, file, memory, not 'azure'"),
        ("", "b", "one of s3, gcs, file, memory"),
        ("s3", "", "needs a bucket"),
        ("file", "", "needs a bucket \\(a directory\\)"),
    ],
)
def test_what_cannot_be_opened_is_reported(provider: str, bucket: str, message: str) -> None:
    with pytest.raises(errors.PermissionDeniedError, match=message):
        open.open_store(provider, bucket=bucket)


@pytest.mark.parametrize("prefix", ["../x", "a//b", "a\0b"])
def test_a_bad_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(errors.PermissionDeniedError):
        open.open_store("memory", bucket="", prefix=prefix)


@pytest.mark.parametrize("endpoint", ["localhost:8989", "ftp://host", "http://", "nonsense"])
def test_a_bad_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(errors.PermissionDeniedError, match="like https://host:port"):
        open.open_store("s3", bucket="dev", endpoint=endpoint)


def test_clients_of_clouds_are_loaded_only_when_asked_for() -> None:
    code = "from nstance.objects import open; open.open_store('memory', bucket='')"
    code = f"import sys; {code}; sys.exit('obstore' in sys.modules or 'nstance.gcp.client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
