"""Secrets in Google's Secret Manager.

Its names have neither dots nor slashes. So `/` is written `__`, `.` is `_d` and `_` is `_u`: `nstance/prod/tls.key` is
`nstance__prod__tls_dkey` there. The trap: a secret is created empty, and gets its value by a second call. One that is left
empty by a crash is finished by the next writer.
"""

import base64
import binascii
import calendar
import time

from nstance.gcp.client import Answer
from nstance.gcp.endpoints import SECRETS
from nstance.secretstore import errors, port, text
from nstance.secretstore.gcp.calls import Calls, SecretCall
from nstance.secretstore.gcp.clients import GoogleClients

MAX_VALUE = 65_536  # Google's limit, in bytes
MAX_ID = 255
EMPTY_SECONDS = 60.0  # an older secret without a value was left by a crash
_PAGE = 250
_WRITTEN = {"/": "__", ".": "_d", "_": "_u"}
_READ = {written: letter for letter, written in _WRITTEN.items()}
_LATEST = "latest"


def secret_id(name: str) -> str:
    """Raises PermanentError for a name that gets too long."""
    id = "".join(_WRITTEN.get(letter, letter) for letter in name)
    if len(id) > MAX_ID:
        raise errors.PermanentError(
            f"secret {name}: expected at most {MAX_ID} characters in {id}; choose a shorter name"
        )
    return id


def name_of(id: str) -> str:
    """The inverse; empty for an ID that is not made by `secret_id`."""
    letters, rest = [], id
    while rest:
        size = 2 if rest[0] == "_" else 1
        letter = _READ.get(rest[:2]) if size == 2 else rest[0]
        if letter is None:
            return ""
        letters.append(letter)
        rest = rest[size:]
    return "".join(letters)


class SecretManagerStore:
    def __init__(self, clients: GoogleClients, *, prefix: str) -> None:
        self._clients = clients
        self._prefix = prefix

    async def get(self, name: str) -> bytes:
        return (await read_version(self._clients, await self._path(name)))[0]

    async def create(self, name: str, value: bytes) -> None:
        path, encoded = await self._path(name), self._encode(name, value)
        await create_secret(self._clients, path, encoded)

    async def put(self, name: str, value: bytes) -> None:
        path, encoded = await self._path(name), self._encode(name, value)
        try:
            await add_version(self._clients, path, encoded)
        except errors.NotFoundError:
            try:
                await create_secret(self._clients, path, encoded)
            except errors.AlreadyExistsError:  # another writer created it in between
                await add_version(self._clients, path, encoded)

    async def list(self) -> list[port.SecretName]:
        project, wanted = await self._clients.project(), secret_id(self._prefix)
        calls = _calls(self._clients)
        query = {"pageSize": str(_PAGE), "filter": f"name:{wanted}"}
        found: list[port.SecretName] = []
        while True:
            page = await calls.call(
                SecretCall(
                    method="GET",
                    path=f"projects/{project}/secrets",
                    permission="secretmanager.secrets.list",
                    about=f"secrets {wanted}*",
                    query=query,
                )
            )
            ids = (str(each.get("name", "")).rpartition("/")[2] for each in page.get("secrets") or ())
            below = (name_of(id.removeprefix(wanted)) for id in ids if id.startswith(wanted))
            found += [port.SecretName(name) for name in below if port.is_name(name)]
            if not page.get("nextPageToken"):
                return sorted(found)
            query["pageToken"] = str(page["nextPageToken"])

    async def delete(self, name: str) -> None:
        path = await self._path(name)
        call = SecretCall(
            method="DELETE", path=path, permission="secretmanager.secrets.delete", about=f"secret {_id(path)}"
        )
        try:
            await _calls(self._clients).call(call)
        except errors.NotFoundError:
            return

    async def _path(self, name: str) -> str:
        id = secret_id(self._prefix + port.check_name(name))
        return f"projects/{await self._clients.project()}/secrets/{id}"

    def _encode(self, name: str, value: bytes) -> bytes:
        port.check_value(value)
        encoded = text.to_text(value).encode()
        if len(encoded) > MAX_VALUE:
            raise errors.PermanentError(
                f"secret {name}: expected at most {MAX_VALUE} bytes for Secret Manager, found {len(encoded)}; "
                "store it in object storage"
            )
        return encoded


async def read_version(clients: GoogleClients, path: str, version: str = _LATEST) -> tuple[bytes, int]:
    """The value of a secret, and the number of its version. Raises NotFoundError."""
    about = f"secret {_id(path)}"
    answer = await _calls(clients).call(
        SecretCall(
            method="GET",
            path=f"{path}/versions/{version}:access",
            permission="secretmanager.versions.access",
            about=about,
        )
    )
    payload = answer.get("payload")
    try:
        encoded = base64.b64decode(str((payload or {})["data"]), validate=True)
        number = int(str(answer.get("name", "")).rpartition("/")[2])
        value = text.from_text(encoded.decode(), about)
    except UnicodeDecodeError:
        value = encoded  # written by somebody else
    except (KeyError, ValueError, binascii.Error) as problem:
        raise errors.DecryptionError(f"{about}: Google's answer has no value") from problem
    if len(value) > port.MAX_VALUE:
        raise errors.DecryptionError(f"{about}: expected at most {port.MAX_VALUE} bytes, found {len(value)}")
    return value, number


async def create_secret(clients: GoogleClients, path: str, encoded: bytes) -> None:
    """Raises AlreadyExistsError."""
    parent, _, id = path.rpartition("/secrets/")
    call = SecretCall(
        method="POST",
        path=f"{parent}/secrets",
        permission="secretmanager.secrets.create",
        about=f"secret {id}",
        query={"secretId": id},
        body={"replication": {"automatic": {}}},
        attempts=1,  # a repeated create could not tell its own earlier success from another writer's
    )
    try:
        await _calls(clients).call(call)
    except errors.AlreadyExistsError:
        if not await _was_left_empty(clients, path):
            raise
    await add_version(clients, path, encoded)


async def _was_left_empty(clients: GoogleClients, path: str) -> bool:
    try:
        await read_version(clients, path)
        return False
    except errors.NotFoundError:
        pass
    found: Answer = await _calls(clients).call(
        SecretCall(method="GET", path=path, permission="secretmanager.secrets.get", about=f"secret {_id(path)}")
    )
    try:
        created = calendar.timegm(time.strptime(str(found.get("createTime"))[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return False
    return clients.clock.wall() >= created + EMPTY_SECONDS


async def add_version(clients: GoogleClients, path: str, encoded: bytes) -> None:
    """Raises NotFoundError."""
    call = SecretCall(
        method="POST",
        path=f"{path}:addVersion",
        permission="secretmanager.versions.add",
        about=f"secret {_id(path)}",
        body={"payload": {"data": base64.b64encode(encoded).decode()}},
    )
    await _calls(clients).call(call)


def _calls(clients: GoogleClients) -> Calls:
    return Calls(clients.client(), SECRETS, clients.clock)


def _id(path: str) -> str:
    return path.rpartition("/")[2]
