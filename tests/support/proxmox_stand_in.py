"""Proxmox VE for tests: the program fakepve in a process of its own, behind a proxy that loses answers and refuses calls.

fakepve is run as a program and never imported: its license differs from ours. NSTANCE_FAKEPVE names it; `make test-proxmox`
installs it into an environment of its own. The proxy turns our API token into fakepve's login. It also adds what fakepve
lacks and a real cluster has: a VM has no name while it is cloned, and the cluster's list has names, states and sizes only
after the node's next report, and not of nodes that are offline.
"""

import contextlib
import datetime
import http.client
import ipaddress
import json
import os
import random
import shutil
import ssl
import subprocess
import time
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from support import ports

TOKEN = "root@pam!nstance"
SECRET = "not-a-secret"
START_SECONDS = 120.0


@dataclass(frozen=True)
class Rule:
    """What happens to requests whose method and path match, `times` of them."""

    method: str
    part: str  # of the path
    status: int = 0  # 0: passed on, and the answer is lost
    message: str = ""


class StandIn:
    """The cluster, as people and accidents reach it: directly."""

    def __init__(self, port: int, certificate: Path) -> None:
        self.port = port
        self._tls = ssl.create_default_context(cafile=str(certificate))
        self.ticket: dict[str, str] = {}
        self.rules: list[Rule] = []
        self.chance: random.Random | None = None  # of the next three
        self.loss = 0.0  # of any call, before or after its effect
        self.refusals = 0.0  # of changes: no quorum, a lock
        self.slow_tasks = 0.0  # a task is said to run still
        self.calls: list[tuple[str, str]] = []
        self.uploads: list[tuple[str, bytes]] = []  # names and content
        self.offline: set[str] = set()  # nodes
        self.report_lag = 2  # lists of the cluster until a new VM has a name in them
        self.clone_looks = 1  # requests that find a clone unfinished
        self.renamed: dict[int, str] = {}  # by VMID: the name in lists of the cluster
        self._unreported: dict[int, int] = {}  # by VMID: lists that are left
        self._cloning: dict[int, tuple[str, int]] = {}  # by VMID: the task, and the requests that are left
        self.permissions: dict[str, dict[str, int]] | None = None  # of the token

    def ask(self, method: str, path: str, /, **data: object) -> Any:
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self._tls, timeout=10)
        body = urllib.parse.urlencode({key.replace("_", "-"): value for key, value in data.items()})
        headers = {"Content-Type": "application/x-www-form-urlencoded", **self.login()}
        target = f"/api2/json{path}"
        if method in ("GET", "DELETE") and body:
            target, body = f"{target}?{body}", ""
        try:
            connection.request(method, target, body=body or None, headers=headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        assert answer.status == 200, (method, path, answer.status, text)
        return json.loads(text)["data"]

    def login(self) -> dict[str, str]:
        if not self.ticket:
            return {}
        return {"Cookie": f"PVEAuthCookie={self.ticket['ticket']}", "CSRFPreventionToken": self.ticket["token"]}

    def log_in(self) -> None:
        found = self.ask("POST", "/access/ticket", username="root@pam", password="secret")
        self.ticket = {"ticket": found["ticket"], "token": found["CSRFPreventionToken"]}

    def vms(self) -> list[dict[str, Any]]:
        return [each for each in self.ask("GET", "/cluster/resources", type="vm") if not each.get("template")]

    def vm(self, name: str) -> dict[str, Any]:
        return next(each for each in self.vms() if each.get("name") == name)

    def path(self, name: str) -> str:
        found = self.vm(name)
        return f"/nodes/{found['node']}/qemu/{found['vmid']}"

    def isos(self, node: str = "pve1") -> list[str]:
        found = self.ask("GET", f"/nodes/{node}/storage/local/content", content="iso")
        return sorted(each["volid"].rpartition("/")[2] for each in found)

    def volumes(self) -> list[str]:
        found = self.ask("GET", "/nodes/pve1/storage/local-lvm/content")
        return sorted(each["volid"] for each in found if "base-" not in each["volid"])

    # ---- the proxy

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix("/api2/json")
        self.calls.append((request.method, path))
        if request.headers.get("Authorization") != f"PVEAPIToken={TOKEN}={SECRET}":
            return web.json_response({"data": None}, status=401, reason="authentication failure")
        if path == "/access/permissions" and self.permissions is not None:
            return web.json_response({"data": self.permissions})
        if any(path.startswith(f"/nodes/{node}/") for node in self.offline):
            return web.json_response({"data": None}, status=595, reason="No route to host")
        rule = next((each for each in self.rules if each.method == request.method and each.part in path), None)
        if rule is not None:
            self.rules.remove(rule)
            if rule.status:
                body = {"data": None, "message": f"{rule.message}\n"}
                return web.json_response(body, status=rule.status, reason=rule.message.splitlines()[0])
        if (refusal := self._refusal(request.method, path)) is not None:
            return web.json_response({"data": None, "message": f"{refusal}\n"}, status=500, reason=refusal)
        if (answer := self._of_unfinished_clone(request.method, path)) is not None:
            return answer
        is_poll = path.endswith("/status") and "/tasks/" in path
        if is_poll and self.chance is not None and self.chance.random() < self.slow_tasks:
            return web.json_response({"data": {"status": "running"}})
        lost = None
        if self.chance is not None and self.chance.random() < self.loss:
            lost = self.chance.choice(("before", "after"))
        if lost == "before":
            return self._hang_up(request)
        if path.endswith("/upload"):
            content = await request.read()
            self.uploads.append((content[:300].decode(errors="replace"), content))
        headers = {"Content-Type": request.headers["Content-Type"]} if "Content-Type" in request.headers else {}
        async with request.app[_SESSION].request(
            request.method,
            f"https://127.0.0.1:{self.port}{request.path_qs}",
            data=await request.read() or None,
            headers={**headers, **self.login()},
            ssl=self._tls,
        ) as answer:
            body = await answer.read()
        if answer.status == 200 and path.endswith("/clone"):
            self._on_clone(await request.text(), json.loads(body)["data"])
        if lost or (rule is not None and not rule.status):
            return self._hang_up(request)
        if path == "/cluster/resources" and answer.status == 200:
            body = self._as_reported(body)
        return web.Response(body=body, status=answer.status, reason=answer.reason, content_type="application/json")

    def _refusal(self, method: str, path: str) -> str | None:
        if method == "GET" or self.chance is None or self.chance.random() >= self.refusals:
            return None
        no_quorum = "cluster not ready - no quorum?"
        locked = ("VM is locked (backup)", "can't lock file '/var/lock/qemu-server/lock-1.conf' - got timeout")
        return self.chance.choice((no_quorum, *(locked if "/qemu/" in path else ())))

    def _on_clone(self, form: str, upid: str) -> None:
        vmid = int(urllib.parse.parse_qs(form)["newid"][0])
        looks, lists = self.clone_looks, self.report_lag
        if self.chance is not None:
            looks, lists = self.chance.randint(0, 3), self.chance.randint(0, 4)
        self._cloning[vmid], self._unreported[vmid] = (upid, looks), lists

    def _is_cloning(self, vmid: int) -> bool:
        upid, looks = self._cloning.get(vmid, ("", 0))
        if not upid:
            return False
        self._cloning[vmid] = upid, looks - 1
        task = self.ask("GET", f"/nodes/{upid.split(':')[1]}/tasks/{upid}/status")
        if looks > 0 or task["status"] == "running":
            return True
        del self._cloning[vmid]
        return False

    def _of_unfinished_clone(self, method: str, path: str) -> web.Response | None:
        """Its file says only that it is being made. Tasks are not finished before it is."""
        parts = path.split("/")
        if "tasks" in parts:
            upid = parts[parts.index("tasks") + 1]
            is_running = any(self._is_cloning(vmid) for vmid, (of, _) in list(self._cloning.items()) if of == upid)
            return web.json_response({"data": {"status": "running"}}) if is_running else None
        if "qemu" not in parts[:-1] or not self._is_cloning(int(parts[parts.index("qemu") + 1])):
            return None
        if method != "GET":
            return web.json_response({"data": None}, status=500, reason="VM is locked (clone)")
        config = {"lock": "clone", "description": "qmclone temporary file\n", "digest": "0"}
        return web.json_response({"data": {"lock": "clone", "status": "stopped"} if parts[-1] == "current" else config})

    def _as_reported(self, body: bytes) -> bytes:
        """What a node reports is missing until its next report, and while it is offline."""
        found = json.loads(body)
        for number, each in enumerate(found["data"]):
            if each["type"] == "node" and each["node"] in self.offline:
                each["status"] = "offline"
            if each["type"] != "qemu":
                continue
            each["name"] = self.renamed.get(each["vmid"], each.get("name"))
            left = self._unreported.get(each["vmid"], 0)
            self._unreported[each["vmid"]] = left - 1
            is_cloning = self._is_cloning(each["vmid"])
            if is_cloning or left > 0 or each["node"] in self.offline:
                known = {name: each[name] for name in ("id", "vmid", "node", "type", "tags", "lock") if name in each}
                found["data"][number] = {**known, "status": "unknown", **({"lock": "clone"} if is_cloning else {})}
        return json.dumps(found).encode()

    @staticmethod
    def _hang_up(request: web.Request) -> web.StreamResponse:
        if request.transport is not None:  # the client may be gone already
            request.transport.abort()
        return web.Response()


_SESSION: web.AppKey[aiohttp.ClientSession] = web.AppKey("session", aiohttp.ClientSession)


def program() -> str:
    """Skips the test without it."""
    found = os.environ.get("NSTANCE_FAKEPVE") or shutil.which("fakepve")
    if not found or not os.access(found, os.X_OK):
        pytest.skip("needs the program fakepve: run 'make test-proxmox', which installs it")
    return found


@contextlib.contextmanager
def cluster(folder: Path, *, time_scale: float = 0.0) -> Iterator[StandIn]:
    """Two nodes, each with a template of the same name."""
    command = program()
    make_certificate(folder)
    guests = [
        {
            "vmid": 9000 + number,
            "name": "debian",
            "node": f"pve{number}",
            "template": True,
            "config": {
                "name": "debian",
                "template": 1,
                "scsi0": f"local-lvm:base-{9000 + number}-disk-0,size=2G",
                "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0",
                "memory": "512",
            },
        }
        for number in (1, 2)
    ]
    (folder / "guests.json").write_text(json.dumps({"guests": guests}))
    with ports.claimed() as port:
        yield from _running(command, folder, port, time_scale)


def _running(command: str, folder: Path, port: int, time_scale: float) -> Iterator[StandIn]:
    certificate, key = folder / "pve.crt", folder / "pve.key"
    arguments = [str(folder / "guests.json"), "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--time-scale", str(time_scale), "--cert", str(certificate), "--key", str(key)]
    # Not our environment: it has one of its own.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with (folder / "fakepve.log").open("wb") as log:
        process = subprocess.Popen([command, *arguments], stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        made = StandIn(port, certificate)
        deadline = time.monotonic() + START_SECONDS
        while b"listening" not in (folder / "fakepve.log").read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((folder / "fakepve.log").read_text())
            time.sleep(0.02)
        made.log_in()
        yield made
    finally:
        process.kill()
        process.wait()


@contextlib.asynccontextmanager
async def proxy(stand_in: StandIn) -> AsyncIterator[str]:
    """The address that providers use."""
    app = web.Application(client_max_size=8 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", stand_in._pass_on)
    async with aiohttp.ClientSession() as session:
        app[_SESSION] = session
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pve")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding, format = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    certificate, private = folder / "pve.crt", folder / "pve.key"
    certificate.write_bytes(made.public_bytes(encoding))
    private.write_bytes(key.private_bytes(encoding, format, serialization.NoEncryption()))
    return certificate, private
