"""What stock kubectl makes of dev-k8s: each verb that the documents and the walk-throughs use."""

import asyncio
import json
import pathlib
from collections.abc import AsyncIterator

import pytest

from support.eventually import eventually
from support.k8s_server import KUBECTL, NO_KUBECTL, Server, serving

pytestmark = pytest.mark.skipif(KUBECTL is None, reason=NO_KUBECTL)

POOL = """\
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachinePool
metadata: {name: nstance-test}
spec: {clusterName: example, replicas: 3}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: NstanceMachinePool
metadata: {name: nstance-test}
spec: {group: test, shards: [dev-1, dev-2]}
"""
DEFINITION = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget, shortNames: [wd]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}}
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Color, type: string, jsonPath: .spec.color, priority: 1}
    schema:
      openAPIV3Schema:
        type: object
        description: A thing with a size.
        properties:
          spec:
            type: object
            required: [size]
            properties:
              size: {type: integer, minimum: 0, description: How big it is.}
              color: {type: string, enum: [red, blue], default: red}
          status: {type: object, properties: {size: {type: integer}}}
"""
BUDGET = """\
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: guard}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
"""
WIDGET = """\
apiVersion: example.com/v1
kind: Widget
metadata: {name: a}
spec: {size: 2}
"""


@pytest.fixture
async def server(tmp_path: pathlib.Path) -> AsyncIterator[Server]:
    async with serving(tmp_path / "k8s") as found:
        yield found


def words(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines() if line.strip()]


async def test_apply_get_scale_edit_delete(server: Server) -> None:
    made = await server.kubectl("apply", "-f", "-", stdin=POOL)
    assert made.count(" created") == 2
    assert (await server.kubectl("apply", "-f", "-", stdin=POOL)).count(" unchanged") == 2
    changed = POOL.replace("replicas: 3", "replicas: 4")
    assert "+  replicas: 4" in await _diff(server, changed)
    assert "configured" in await server.kubectl("apply", "-f", "-", stdin=changed)
    assert "dry run" in await server.kubectl("apply", "--dry-run=server", "-f", "-", stdin=POOL)
    tables = await server.kubectl("get", "machinepools,nstancemachinepools,nstanceshardgroups,nodes")
    assert words(tables)[0] == ["NAME", "CLUSTER", "DESIRED", "REPLICAS", "READY", "PHASE", "AGE"]
    assert words(tables)[1][:3] == ["machinepool.cluster.x-k8s.io/nstance-test", "example", "4"]
    assert words(tables)[3][1:3] == ["test", '["dev-1","dev-2"]']
    assert "scaled" in await server.kubectl("scale", "machinepool", "nstance-test", "--replicas=5")
    await server.kubectl("edit", "mp", "nstance-test", EDITOR="sed -i s/example/edited/")
    spec = json.loads(await server.kubectl("get", "mp", "nstance-test", "-o", "json"))["spec"]
    assert spec == {"clusterName": "edited", "replicas": 5}
    assert "deleted" in await server.kubectl("delete", "mp,nmp", "--all")
    assert "No resources found" not in await server.kubectl("get", "ns")
    assert not (server.folder / "machinepools/default/nstance-test.json").exists()


async def _diff(server: Server, text: str) -> str:
    """`kubectl diff` exits with 1 where there is a difference, and shows it."""
    process = await asyncio.create_subprocess_exec(
        str(KUBECTL),
        *("diff", "-f", "-"),
        env=server.environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(90):
        out, _ = await process.communicate(text.encode())
    assert process.returncode == 1
    return out.decode()


async def test_server_side_apply_and_patches(server: Server) -> None:
    assert "serverside-applied" in await server.kubectl("apply", "--server-side", "-f", "-", stdin=POOL)
    await server.kubectl("patch", "mp", "nstance-test", "--type=merge", "-p", '{"spec": {"replicas": 7}}')
    path = '"path": "/spec/replicas"'
    operations = f'[{{"op": "test", {path}, "value": 7}}, {{"op": "replace", {path}, "value": 8}}]'
    await server.kubectl("patch", "mp", "nstance-test", "--type=json", "-p", operations)
    complaint = await server.kubectl("patch", "mp", "nstance-test", "--type=json", "-p", operations, fails=True)
    assert "value is different" in complaint
    await server.kubectl("label", "mp", "nstance-test", "a=b")
    await server.kubectl("annotate", "mp", "nstance-test", "x=y")
    assert words(await server.kubectl("get", "mp", "-l", "a=b", "--show-labels"))[1][-1] == "a=b"
    assert await server.kubectl("get", "mp", "-l", "a!=b", "-o", "name") == ""
    assert "8" in await server.kubectl("get", "mp", "nstance-test", "-o", "jsonpath={.spec.replicas}")


async def test_wait_for_conditions_fields_and_deletion(server: Server) -> None:
    await server.kubectl("apply", "-f", "-", stdin=POOL)

    async def later(status: str) -> None:
        body = f'{{"status": {{"phase": "Running", "conditions": [{{"type": "Ready", "status": "{status}"}}]}}}}'
        await server.kubectl("patch", "mp", "nstance-test", "--subresource=status", "--type=merge", "-p", body)

    waiting = server.kubectl("wait", "--for=condition=Ready", "mp/nstance-test", "--timeout=60s")
    assert "condition met" in (await asyncio.gather(waiting, later("True")))[0]
    assert "met" in await server.kubectl(
        "wait", "--for=jsonpath={.status.phase}=Running", "mp/nstance-test", "--timeout=60s"
    )
    waiting = server.kubectl("wait", "--for=delete", "mp/nstance-test", "--timeout=60s")
    await asyncio.gather(waiting, server.kubectl("delete", "mp", "nstance-test"))


async def test_deletion_waits_for_finalizers_and_goes_through_owners(server: Server) -> None:
    await server.kubectl("apply", "-f", "-", stdin=POOL)
    owner = json.loads(await server.kubectl("get", "mp", "nstance-test", "-o", "json"))
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": "nstance-test"}
    reference |= {"uid": owner["metadata"]["uid"], "blockOwnerDeletion": True}
    patch = {"metadata": {"ownerReferences": [reference], "finalizers": ["x/y"]}}
    await server.kubectl("patch", "nmp", "nstance-test", "--type=merge", "-p", json.dumps(patch))
    deleting = asyncio.ensure_future(server.kubectl("delete", "mp", "nstance-test", "--cascade=foreground"))
    await eventually(
        lambda: server.file("nstancemachinepools/default/nstance-test.json")["metadata"].get("deletionTimestamp")
    )
    assert server.file("machinepools/default/nstance-test.json")["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert not deleting.done()
    await server.kubectl("patch", "nmp", "nstance-test", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    assert "deleted" in await deleting
    assert await server.kubectl("get", "mp,nmp", "-o", "name") == ""


async def test_a_definition_through_kustomize(server: Server, tmp_path: pathlib.Path) -> None:
    (tmp_path / "crd").mkdir()
    (tmp_path / "crd/kustomization.yaml").write_text("resources: [widgets.yaml]\n")
    (tmp_path / "crd/widgets.yaml").write_text(DEFINITION)
    assert "created" in await server.kubectl("apply", "-k", str(tmp_path / "crd"))
    await server.kubectl("wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=60s")
    await server.kubectl("apply", "-f", "-", stdin=WIDGET)
    assert words(await server.kubectl("get", "wd", "-o", "wide")) == [["NAME", "SIZE", "COLOR"], ["a", "2", "red"]]
    await server.kubectl("scale", "wd", "a", "--replicas=4")
    assert await server.kubectl("get", "wd", "a", "-o", "jsonpath={.spec.size}") == "4"
    complaint = await server.kubectl(
        "apply", "-f", "-", stdin=WIDGET.replace("size: 2", "size: 2, colour: x"), fails=True
    )
    assert 'unknown field "spec.colour"' in complaint
    complaint = await server.kubectl("apply", "-f", "-", stdin=WIDGET.replace("2", "-1"), fails=True)
    assert "should be greater than or equal to 0" in complaint
    explained = await server.kubectl("explain", "wd.spec")
    assert "How big it is." in explained
    assert "size" in explained
    assert "widgets" in await server.kubectl("api-resources", "--api-group=example.com")
    await server.kubectl("delete", "-k", str(tmp_path / "crd"))
    assert "could not find" in await server.kubectl("get", "wd", fails=True)


async def test_a_list_is_applied(server: Server) -> None:
    """kubectl looks for the schema of a List, which has none, in the older form of OpenAPI too."""
    items = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}} for name in ("a", "b")]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    for flags in ((), ("--server-side",)):
        answer = await server.kubectl("apply", *flags, "-f", "-", stdin=listed)
        assert "configmap/a" in answer
        assert "configmap/b" in answer


async def test_what_kubectl_makes_itself(server: Server) -> None:
    """These are sent as protobuf."""
    await server.kubectl("create", "namespace", "apart")
    await server.kubectl("create", "secret", "generic", "nonce", "--from-literal=nonce.jwt=x.y.z", "-n", "apart")
    await server.kubectl("create", "configmap", "ca", "--from-literal=ca.crt=pem")
    await server.kubectl("create", "serviceaccount", "robot")
    assert (await server.kubectl("create", "token", "robot", "--duration=1h")).count(".") == 2
    assert (
        await server.kubectl("get", "secret", "nonce", "-n", "apart", "-o", "jsonpath={.data}")
        == '{"nonce.jwt":"eC55Lno="}'
    )
    assert words(await server.kubectl("get", "secret,cm", "-A"))[1][:4] == ["apart", "secret/nonce", "Opaque", "1"]
    complaint = await server.kubectl("create", "deployment", "web", "--image=nginx", fails=True)
    assert "objects of kind 'Deployment' are supported as JSON or YAML only" in complaint
    web = await server.kubectl("create", "deployment", "web", "--image=nginx", "--dry-run=client", "-o", "yaml")
    await server.kubectl("apply", "-f", "-", stdin=web)
    await server.kubectl("set", "image", "deploy/web", "nginx=nginx:2")
    containers = "jsonpath={.spec.template.spec.containers[*].image}"
    assert await server.kubectl("get", "deploy", "web", "-o", containers) == "nginx:2"
    await server.kubectl("delete", "namespace", "apart")
    assert "NotFound" in await server.kubectl("get", "secret", "nonce", "-n", "apart", fails=True)


async def test_drain_and_cordon(server: Server) -> None:
    node = {"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    server.edit("nodes/n.json", node)
    for number in (1, 2):
        pod = {"metadata": {"labels": {"app": "web"}}, "spec": {"nodeName": "n", "containers": [{"name": "c"}]}}
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        server.edit(f"pods/default/web-{number}.json", {**pod, "status": ready})
    await eventually(lambda: (server.file("pods/default/web-2.json") or {}).get("metadata", {}).get("uid"))
    await server.kubectl("apply", "-f", "-", stdin=BUDGET)
    assert words(await server.kubectl("get", "pdb"))[1][1:4] == ["1", "N/A", "1"]
    await server.kubectl("cordon", "n")
    assert words(await server.kubectl("get", "nodes"))[1][1] == "Ready,SchedulingDisabled"
    await server.kubectl("uncordon", "n")
    complaint = await server.kubectl("drain", "n", "--force", "--timeout=5s", fails=True)
    assert "violate the pod's disruption budget" in complaint
    assert len(words(await server.kubectl("get", "pods", "--no-headers"))) == 1
    await server.kubectl("delete", "pdb", "guard")
    assert "drained" in await server.kubectl("drain", "n", "--force", "--timeout=60s")
    assert await server.kubectl("get", "pods", "-o", "name") == ""


async def test_describe_shows_events(server: Server) -> None:
    await server.kubectl("apply", "-f", "-", stdin=POOL)
    pool = json.loads(await server.kubectl("get", "mp", "nstance-test", "-o", "json"))
    about = {"kind": "MachinePool", "name": "nstance-test", "namespace": "default", "uid": pool["metadata"]["uid"]}
    event = {
        "metadata": {"name": "nstance-test.1"},
        "involvedObject": about,
        "type": "Normal",
        "reason": "SyncSucceeded",
        "message": "in step with its shards",
    }
    await server.call("POST", "/api/v1/namespaces/default/events", event, code=201)
    assert "SyncSucceeded" in await server.kubectl("describe", "mp", "nstance-test")
    assert "machinepool/nstance-test" in await server.kubectl("get", "events", "--field-selector", "type=Normal")
    server.edit("nodes/n.json", {})
    assert "Unschedulable" in await server.kubectl("describe", "node", "n")


async def test_get_watch_prints_what_changes(server: Server) -> None:
    process = await asyncio.create_subprocess_exec(
        str(KUBECTL),
        *("get", "nodes", "-w", "--no-headers"),
        env=server.environment,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        server.edit("nodes/n.json", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        async with asyncio.timeout(90):
            assert (await process.stdout.readline()).split()[:2] == [b"n", b"Ready"]
        server.edit("nodes/n.json", {**server.file("nodes/n.json"), "spec": {"unschedulable": True}})
        async with asyncio.timeout(90):
            assert (await process.stdout.readline()).split()[:2] == [b"n", b"Ready,SchedulingDisabled"]
    finally:
        process.kill()
        await process.wait()


async def test_discovery_help_and_refusals(server: Server) -> None:
    resources = await server.kubectl("api-resources")
    assert {"machinepools", "nstanceshardgroups", "leases"} <= {line[0] for line in words(resources)}
    assert "Server Version: v1.32" in await server.kubectl("version")
    assert await server.kubectl("get", "--raw", "/readyz") == "ok"
    assert "infrastructure.cluster.x-k8s.io/v1beta1" in await server.kubectl("api-versions")
    assert "KIND:       MachinePool" in await server.kubectl("explain", "machinepools")
    assert 'pods "nobody" not found' in await server.kubectl("get", "pod", "nobody", fails=True)
    assert "doesn't have a resource type" in await server.kubectl("get", "nothing", fails=True)
    bad = POOL.replace("name: nstance-test", "name: Bad_Name")
    assert "a lowercase RFC 1123 subdomain" in await server.kubectl("create", "-f", "-", stdin=bad, fails=True)
    complaint = await server.kubectl("get", "pods", "--field-selector", "spec.unknown=1", fails=True)
    assert "field label not supported" in complaint
