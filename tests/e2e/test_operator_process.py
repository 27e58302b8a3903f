"""`nstance-operator` as a process: a real API server's protocol on one side, a whole shard on the other."""

import asyncio
import base64
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from component.whole_server import World, config, eventually
from nstance.config.addresses import Service
from nstance.dev.k8s import main as dev_k8s
from nstance.kube import errors, kinds, kubeconfig, lease
from nstance.kube.http import HttpKube
from nstance.kube.port import Object
from nstance.model.ids import TenantId
from support import ports

pytestmark = pytest.mark.e2e

SECONDS = 60.0
NAME = "demo--default"


def kubeconfig_for(server: str) -> str:
    return json.dumps(
        {
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": {"server": server}}],
            "users": [{"name": "x", "user": {"token": "t"}}],
        }
    )


async def test_from_an_empty_cluster_to_ready_and_a_signal(tmp_path: Path) -> None:
    groups = {"web": {"template": "web", "size": 2}}
    async with (
        World(tmp_path / "server", config(groups=groups)) as world,
        dev_k8s.serving(tmp_path / "k8s", port=0) as port,
    ):
        await world.start()
        (tmp_path / "kubeconfig").write_text(kubeconfig_for(f"http://127.0.0.1:{port}"))
        kube = HttpKube(kubeconfig.load([tmp_path / "kubeconfig"]), world.clock)
        try:
            await _prepare(kube, world, tmp_path)
            with ports.claimed() as base:
                await _walk(kube, world, tmp_path, base)
        finally:
            await kube.close()


async def _prepare(kube: HttpKube, world: World, dir: Path) -> None:
    token = world.operators().new_nonce(world.leader.lead_now.issuer.authority, tenant=TenantId("default"))
    ca: Object = {"metadata": {"name": "nstance-cluster-ca"}, "data": {"ca.crt": world.ca_pem}}
    await kube.create(kinds.CONFIG_MAP, ca, namespace="default")
    data = {"nonce.jwt": base64.b64encode(token.encode()).decode()}
    nonce: Object = {"metadata": {"name": "nstance-operator-nonce"}, "data": data}
    await kube.create(kinds.SECRET, nonce, namespace="default")
    first = world.servers["a"].base
    registration, operator = (first + list(Service).index(each) for each in (Service.REGISTRATION, Service.OPERATOR))
    (dir / "config.yaml").write_text(
        f"cluster_id: demo\nshards:\n  zone-a:\n    registration_addr: 127.0.0.1:{registration}\n"
        f"    operator_addr: 127.0.0.1:{operator}\n"
    )


async def _walk(kube: HttpKube, world: World, dir: Path, port: int) -> None:
    with (dir / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "nstance.operator.main", f"--config={dir / 'config.yaml'}", f"--kubeconfig={dir / 'kubeconfig'}"),
            *("--leader-elect", "--disable-webhooks", "--zap-encoder=json"),
            *(f"--health-probe-bind-address=127.0.0.1:{port}", f"--metrics-bind-address=127.0.0.1:{port + 1}"),
            stderr=log,
            env={**os.environ, "NSTANCE_NAMESPACE": "default"},
        )
    try:
        await _until(process, lambda: _answers(f"http://127.0.0.1:{port}/readyz"))
        await _until(process, lambda: _all_ready(kube))
        pool = await kube.get(kinds.MACHINE_POOL, "nstance-web", namespace="default")
        assert pool["spec"]["replicas"] == 2
        await kube.patch(kinds.MACHINE_POOL, "nstance-web", {"spec": {"replicas": 3}}, namespace="default")
        await eventually(lambda: len(world.leader.shard.instances) == 3)
        assert "nstance_operator_leader 1.0" in await _answers(f"http://127.0.0.1:{port + 1}/metrics")
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(process.wait(), SECONDS)
    lines = [json.loads(line) for line in (dir / "log").read_text().splitlines()]
    assert code == 0, lines
    assert not [line for line in lines if "traceback" in line]
    released = await kube.get(kinds.LEASE, lease.NAME, namespace="default")
    assert released["spec"]["holderIdentity"] == ""


async def _all_ready(kube: HttpKube) -> bool:
    try:
        pool = await kube.get(kinds.NSTANCE_MACHINE_POOL, "nstance-web", namespace="default")
        cluster = await kube.get(kinds.NSTANCE_CLUSTER, NAME, namespace="default")
    except errors.NotFound:
        return False
    conditions = {each["type"]: each["status"] for each in cluster.get("status", {}).get("conditions", [])}
    return pool.get("status", {}).get("replicas") == 2 and conditions.get("Ready") == "True"


async def _answers(url: str) -> str:
    """The text, or nothing if it is not well."""
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return await answer.text() if answer.status == 200 else ""
    except aiohttp.ClientError:
        return ""


async def _until(process: asyncio.subprocess.Process, look: Any) -> None:
    async with asyncio.timeout(SECONDS):
        while not await look():
            assert process.returncode is None, "the operator has ended"
            await asyncio.sleep(0.05)
