"""The operator as a whole: start, probes, lease, Cluster and kubeconfig, changes, an orderly end."""

import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from component.operator_site import NAME, get, is_ready, ready, running, site
from component.whole_server import SHARD
from nstance.clock import SystemClock, SystemRng
from nstance.kube import errors, kinds, kubeconfig, lease, memory
from nstance.kube.kubeconfig import Access
from nstance.kube.memory import MemoryKube
from nstance.kube.mirror import Mirror
from nstance.kube.port import Kube, Object, Selection
from nstance.operator import workload_cluster
from nstance.operator.controllers import clusters
from nstance.operator.errors import FatalError
from nstance.operator.options import BindAddress, Endpoint, Environment, Waits
from support.eventually import eventually


async def test_from_nothing_to_ready_and_to_an_orderly_end(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        operator = here.operator(leader_elect=True)
        async with running(operator) as task:
            await eventually(lambda: operator.links is not None and is_ready(operator))
            assert await get(operator, "/healthz") == (200, "ok")
            assert await get(operator, "/readyz") == (200, "ok")
            assert (await get(operator, "/nothing"))[0] == 404
            behind = await here.until(kinds.NSTANCE_CLUSTER, lambda found: ready(found).get("status") == "True")
            assert behind["spec"]["controlPlaneEndpoint"] == {"host": "10.0.0.1", "port": 6443}
            assert behind["status"]["initialization"] == {"provisioned": True}
            assert [each["name"] for each in behind["status"]["failureDomains"]] == [SHARD]
            cluster = await here.find(kinds.CLUSTER)
            assert cluster is not None
            assert cluster["spec"]["infrastructureRef"] == {
                "apiGroup": "infrastructure.cluster.x-k8s.io",
                "kind": "NstanceCluster",
                "name": NAME,
            }
            assert behind["metadata"]["ownerReferences"][0]["uid"] == cluster["metadata"]["uid"]
            metrics = (await get(operator, "/metrics"))[1]
            assert f'nstance_operator_shard_connected{{shard="{SHARD}"}} 1.0' in metrics
            assert "nstance_operator_reconciles_total" in metrics
            assert "nstance_operator_leader 1.0" in metrics
            held = await here.find(kinds.LEASE, lease.LEASE_NAME)
            assert held is not None
            assert held["spec"]["holderIdentity"]
            operator.stop()
            await asyncio.wait_for(task, 60)
        released = await here.find(kinds.LEASE, lease.LEASE_NAME)
        assert released is not None
        assert released["spec"]["holderIdentity"] == ""


async def test_shards_of_the_file_come_and_go_and_those_that_are_silent_are_named(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        operator = here.operator()
        async with running(operator):
            await here.until(kinds.NSTANCE_CLUSTER, lambda found: ready(found).get("status") == "True")
            here.configure(**{"zone-x": "127.0.0.1:9"})
            found = await here.until(kinds.NSTANCE_CLUSTER, lambda found: "zone-x" in ready(found).get("message", ""))
            assert ready(found)["status"] == "False"
            assert ready(found)["reason"] == "ShardsUnreachable"
            assert [each["name"] for each in found["status"]["failureDomains"]] == [SHARD, "zone-x"]
            assert found["status"]["initialization"] == {"provisioned": True}
            here.configure()
            await here.until(kinds.NSTANCE_CLUSTER, lambda found: ready(found)["status"] == "True")


async def test_the_second_operator_waits_and_takes_over(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        one, two = here.operator(leader_elect=True), here.operator(leader_elect=True)
        async with running(one), running(two):
            await eventually(lambda: one.links is not None or two.links is not None)
            first, second = (one, two) if one.links is not None else (two, one)
            await eventually(lambda: is_ready(first) and is_ready(second))
            assert second.links is None
            first.stop()
            await eventually(lambda: second.links is not None and is_ready(second))


async def test_a_lost_lease_ends_the_process_with_a_clear_line(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        operator = here.operator(leader_elect=True)
        async with running(operator) as task:
            await eventually(lambda: operator.links is not None)
            patch = {"spec": {"holderIdentity": "somebody-else"}}
            await here.kube.patch(kinds.LEASE, lease.LEASE_NAME, patch, namespace="default")
            await asyncio.wait({task}, timeout=60)
            with pytest.raises(FatalError, match=r"leadership lost, exiting: .*somebody-else"):
                task.result()


async def test_what_was_deleted_or_bent_is_repaired(tmp_path: Path) -> None:
    async with site(tmp_path) as here, running(here.operator()):
        for kind in (kinds.NSTANCE_CLUSTER, kinds.NSTANCE_CONTROL_PLANE):
            first = await here.until(kind, lambda found: ready(found).get("status") == "True")
            await here.kube.delete(kind, NAME, namespace="default")
            uid = first["metadata"]["uid"]
            await here.until(
                kind,
                lambda found, uid=uid: found["metadata"]["uid"] != uid and ready(found).get("status") == "True",  # type: ignore[misc]
            )
        bent = {"spec": {"controlPlaneEndpoint": {"host": "elsewhere", "port": 1}}}
        await here.kube.patch(kinds.NSTANCE_CLUSTER, NAME, bent, namespace="default")
        await here.until(
            kinds.NSTANCE_CLUSTER, lambda found: found["spec"]["controlPlaneEndpoint"]["host"] == "10.0.0.1"
        )


async def test_a_deleted_cluster_stays_deleted_until_a_person_creates_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also after a restart. `clusterctl move` deletes it here, because another operator has it."""
    async with site(tmp_path) as here:
        async with running(here.operator()):
            made = await here.until(kinds.CLUSTER, lambda found: True)
            assert made["spec"]["controlPlaneRef"]["kind"] == "NstanceControlPlane"
            await here.until(kinds.SECRET, _has_cluster_uid, "nstance-operator-key")
            await here.kube.delete(kinds.CLUSTER, NAME, namespace="default")
            await eventually(lambda: "Cluster was deleted, nothing is created" in caplog.text)
        caplog.clear()
        async with running(here.operator()):
            await eventually(lambda: "Cluster was deleted, nothing is created" in caplog.text)
            assert await here.find(kinds.CLUSTER) is None
            spec = {key: made["spec"][key] for key in ("infrastructureRef", "controlPlaneRef")}
            await here.kube.create(kinds.CLUSTER, {"metadata": {"name": NAME}, "spec": spec}, namespace="default")
            await here.until(kinds.NSTANCE_CLUSTER, lambda found: ready(found).get("status") == "True")


def _has_cluster_uid(secret: Object) -> bool:
    return "nstance.dev/cluster-uid" in (secret["metadata"].get("annotations") or {})


def content(secret: Object) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(base64.b64decode(secret["data"]["value"]))
    return found


async def test_the_kubeconfig_has_a_short_token_that_is_renewed_in_time(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        name = workload_cluster.secret_name(NAME)
        async with running(here.operator()):
            secret = await here.until(kinds.SECRET, lambda found: True, name)
            access = kubeconfig.parse(base64.b64decode(secret["data"]["value"]))
            assert access.server == "https://10.0.0.1:6443"
            assert access.token
            assert secret["type"] == "cluster.x-k8s.io/secret"
            assert secret["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"] == NAME
            expires = float(secret["metadata"]["annotations"][clusters.EXPIRES_ANNOTATION])
            assert 3000 < expires - here.world.clock.wall() <= 3600
        async with running(here.operator()) as task:  # a restart keeps a good token
            await here.until(kinds.NSTANCE_CLUSTER, lambda found: ready(found).get("status") == "True")
            unchanged = await here.find(kinds.SECRET, name)
            assert unchanged is not None
            assert content(unchanged) == content(secret)
            soon = {
                "metadata": {"annotations": {clusters.EXPIRES_ANNOTATION: str(int(here.world.clock.wall() + 1100))}}
            }
            await here.kube.patch(kinds.SECRET, name, soon, namespace="default")
            await here.until(kinds.SECRET, lambda found: content(found) != content(secret), name)
            assert not task.done()


async def test_a_kubeconfig_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        name = workload_cluster.secret_name(NAME)
        await here.secret(name, {"value": "mine"})
        async with running(here.operator()):
            await here.until(kinds.NSTANCE_CLUSTER, lambda found: ready(found).get("status") == "True")
            secret = await here.find(kinds.SECRET, name)
            assert secret is not None
            assert base64.b64decode(secret["data"]["value"]) == b"mine"


async def test_without_the_service_account_the_rest_goes_on(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        await here.kube.delete(kinds.SERVICE_ACCOUNT, "nstance-capi-workload", namespace="default")
        operator = here.operator()
        async with running(operator):
            await here.until(kinds.NSTANCE_CLUSTER, lambda found: ready(found).get("status") == "True")
            assert await here.find(kinds.SECRET, workload_cluster.secret_name(NAME)) is None
            await eventually(lambda: is_ready(operator))


async def test_a_workload_cluster_elsewhere(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        operator = here.operator(environment=Environment(endpoint=Endpoint("api.example.com", 6443)))
        async with running(operator):
            behind = await here.until(kinds.NSTANCE_CLUSTER, lambda found: ready(found).get("status") == "True")
            assert behind["spec"]["controlPlaneEndpoint"] == {"host": "api.example.com", "port": 6443}
            assert await here.find(kinds.SECRET, workload_cluster.secret_name(NAME)) is None


def kubeconfig_for(server: str, token: str = "t") -> str:
    return json.dumps(
        {
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": {"server": server}}],
            "users": [{"name": "x", "user": {"token": token}}],
        }
    )


async def test_nodes_are_read_through_the_secret_wherever_it_leads(tmp_path: Path) -> None:
    """The Secret comes late, is damaged, gets a new token, then names another cluster: nothing of the old one stays."""
    clock, rng = SystemClock(), SystemRng()
    here = MemoryKube(memory.cluster(clock, rng), clock)
    there = {f"https://{name}": MemoryKube(memory.cluster(clock, rng), clock) for name in ("one", "two")}
    for server, kube in there.items():
        await kube.create(kinds.NODE, {"metadata": {"name": f"node-{server[8:]}"}})
    connected: list[str] = []

    def connect(access: Access) -> Kube:
        connected.append(access.server)
        return there[access.server]

    secrets = Mirror(here, Selection(kinds.SECRET, "default"), clock=clock, rng=rng)
    remote = workload_cluster.RemoteKube(secrets, "x-kubeconfig", connect=connect)
    nodes = Mirror(remote, Selection(kinds.NODE), clock=clock, rng=rng)
    tasks = [asyncio.create_task(secrets.run()), asyncio.create_task(nodes.run())]

    async def put(text: str) -> None:
        data = {"value": base64.b64encode(text.encode()).decode()}
        try:
            await here.patch(kinds.SECRET, "x-kubeconfig", {"data": data}, namespace="default")
        except errors.NotFoundError:
            body = {"metadata": {"name": "x-kubeconfig"}, "data": data}
            await here.create(kinds.SECRET, body, namespace="default")

    try:
        await secrets.synced.wait()
        with pytest.raises(errors.UnavailableError, match="is missing"):
            await remote.get(kinds.NODE, "node-one")
        await put("{}")
        await eventually(lambda: "current-context" in remote.problem)
        await put(kubeconfig_for("https://one"))
        await eventually(lambda: list(nodes.objects) == [("", "node-one")])
        await put(kubeconfig_for("https://one", "newer"))
        await eventually(lambda: connected == ["https://one"] * 2)
        await put(kubeconfig_for("https://two"))
        await eventually(lambda: len(connected) == 3)
        there["https://one"].break_watches()  # as closing its client does
        await eventually(lambda: list(nodes.objects) == [("", "node-two")])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await remote.close()


# ---- ends


async def test_nobody_answers_and_a_taken_port_are_fatal(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        await here.world.servers["a"].crash()
        with pytest.raises(FatalError, match="no shard could be reached"):
            await here.operator(waits=Waits(registration=0.1)).run()
        with socket.create_server(("127.0.0.1", 0)) as other:
            taken = BindAddress("127.0.0.1", other.getsockname()[1])
            with pytest.raises(FatalError, match=r"--metrics-bind-address: 127.0.0.1:.* cannot be opened"):
                await here.operator(metrics=taken).run()


def start(*arguments: str, **variables: str) -> "subprocess.Popen[str]":
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables}
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "nstance.operator.main",
            "--disable-webhooks",
            "--health-probe-bind-address=0",
            *arguments,
        ],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("text", "arguments", "variables", "word"),
    [
        (None, (), {}, "config.yaml is missing"),
        ("cluster_id: A\nshards: {}\n", (), {}, "line 1: cluster_id"),
        ("good", (), {}, "no Kubernetes API server configured"),
        ("good", ("--kubeconfig=/nonexistent",), {}, "failed to read kubeconfig"),
        ("good", (), {"NSTANCE_CAPI_ENDPOINT": "https://"}, "NSTANCE_CAPI_ENDPOINT"),
    ],
)
def test_a_process_that_cannot_start_says_one_line(
    tmp_path: Path, text: str | None, arguments: tuple[str, ...], variables: dict[str, str], word: str
) -> None:
    path = tmp_path / "config.yaml"
    if text is not None:
        good = "cluster_id: a\nshards: {b: {registration_addr: 'h:1', operator_addr: 'h:1'}}\n"
        path.write_text(good if text == "good" else text)
    with start(f"--config={path}", *arguments, **variables) as process:
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 1
    assert len(complaint.splitlines()) == 1
    assert complaint.startswith("nstance-operator: ")
    assert word in complaint


def test_a_signal_ends_the_process_well_also_while_kubernetes_is_silent(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "cluster_id: a\nshards: {b: {registration_addr: 'h:1', operator_addr: 'h:1'}}\n"
    )
    (tmp_path / "kubeconfig").write_text(kubeconfig_for("http://127.0.0.1:9"))
    with start(f"--config={tmp_path / 'config.yaml'}", f"--kubeconfig={tmp_path / 'kubeconfig'}") as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "failed to reach Kubernetes API server" in line:
                break
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
