"""Secret Manager and Cloud KMS."""

import base64
import time
from dataclasses import dataclass, field

from support.gcp.stand_in import PROJECT, GoogleFault, Request, StandIn

KMS_KEY = f"projects/{PROJECT}/locations/global/keyRings/nstance/cryptoKeys/cluster"
_SECRETS = "secretmanager.projects.secrets"


@dataclass(slots=True)
class Secret:
    created: float
    versions: list[bytes | None] = field(default_factory=list)  # None: destroyed


@dataclass(slots=True)
class Secrets:
    stand_in: StandIn
    kept: dict[str, Secret] = field(default_factory=dict)
    page_size: int = 5
    kms_key_is_enabled: bool = True

    def install(self) -> None:
        self.stand_in.add(
            "secretmanager.v1",
            {
                f"{_SECRETS}.create": self._create,
                f"{_SECRETS}.get": self._get,
                f"{_SECRETS}.list": self._list,
                f"{_SECRETS}.delete": self._delete,
                f"{_SECRETS}.addVersion": self._add_version,
                f"{_SECRETS}.versions.access": self._access,
            },
        )
        self.stand_in.add("cloudkms.v1", {"cloudkms.projects.locations.keyRings.cryptoKeys.decrypt": self._decrypt})

    async def _create(self, request: Request) -> object:
        self._check(request, "secretmanager.secrets.create")
        id = request.params["secretId"]
        if id in self.kept:
            raise GoogleFault(409, "ALREADY_EXISTS", f"Secret [projects/1/secrets/{id}] already exists.")
        self.kept[id] = Secret(time.time())
        return self._shown(id)

    async def _get(self, request: Request) -> object:
        return self._shown(self._found(request, "secretmanager.secrets.get"))

    async def _list(self, request: Request) -> object:
        self._check(request, "secretmanager.secrets.list")
        wanted = request.params.get("filter", "").removeprefix("name:")
        ids = sorted(id for id in self.kept if wanted in id)
        start = int(request.params.get("pageToken", "0"))
        size = min(self.page_size, int(request.params.get("pageSize", "25000")))
        page: dict[str, object] = {
            "secrets": [self._shown(id) for id in ids[start : start + size]],
            "totalSize": len(ids),
        }
        if len(ids) > start + size:
            page["nextPageToken"] = str(start + size)
        return page

    async def _delete(self, request: Request) -> object:
        del self.kept[self._found(request, "secretmanager.secrets.delete")]
        return {}

    async def _add_version(self, request: Request) -> object:
        id = self._found(request, "secretmanager.versions.add")
        value = base64.b64decode(request.body["payload"].get("data", ""))
        if not 0 < len(value) <= 65_536:
            raise GoogleFault(400, "INVALID_ARGUMENT", "The payload is empty or too large")
        self.kept[id].versions.append(value)
        return {"name": f"projects/1/secrets/{id}/versions/{len(self.kept[id].versions)}", "state": "ENABLED"}

    async def _access(self, request: Request) -> object:
        id = self._found(request, "secretmanager.versions.access")
        versions, wanted = self.kept[id].versions, request.params["versionsId"]
        number = len(versions) if wanted == "latest" else int(wanted)
        if not 1 <= number <= len(versions):
            raise GoogleFault(
                404, "NOT_FOUND", f"Secret Version [projects/1/secrets/{id}/versions/{wanted}] not found."
            )
        value = versions[number - 1]
        if value is None:
            raise GoogleFault(400, "FAILED_PRECONDITION", "Secret Version is in DESTROYED state.")
        payload = {"data": base64.b64encode(value).decode(), "dataCrc32c": "1"}
        return {"name": f"projects/1/secrets/{id}/versions/{number}", "payload": payload}

    async def _decrypt(self, request: Request) -> object:
        self.stand_in.check("cloudkms.cryptoKeyVersions.useToDecrypt")
        if not self.kms_key_is_enabled:
            raise GoogleFault(400, "FAILED_PRECONDITION", "The key version is not enabled, current state is: DISABLED.")
        value = base64.b64decode(request.body["ciphertext"])
        if not value.startswith(b"wrapped:"):
            raise GoogleFault(400, "INVALID_ARGUMENT", "Decryption failed: the ciphertext is invalid.")
        return {"plaintext": base64.b64encode(value.removeprefix(b"wrapped:")).decode()}

    def _found(self, request: Request, permission: str) -> str:
        self._check(request, permission)
        id = request.params["secretsId"]
        if id not in self.kept:
            raise GoogleFault(404, "NOT_FOUND", f"Secret [projects/1/secrets/{id}] not found.")
        return id

    def _check(self, request: Request, permission: str) -> None:
        if request.params["projectsId"] != PROJECT:
            raise GoogleFault(403, "PERMISSION_DENIED", f"Permission '{permission}' denied (or it may not exist).")
        self.stand_in.check(permission)

    def _shown(self, id: str) -> dict[str, object]:
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.kept[id].created))
        return {"name": f"projects/1/secrets/{id}", "createTime": created, "replication": {"automatic": {}}}


def wrapped(key: bytes) -> str:
    """A data key as KMS has encrypted it."""
    return base64.b64encode(b"wrapped:" + key).decode()
