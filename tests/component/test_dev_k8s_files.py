"""Files of dev-k8s that people and programs write, and what becomes of them."""

import json
import logging
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nstance import clock as clocks
from nstance.dev.k8s.files import Files
from nstance.kube.api.server import Target
from nstance.model.ids import ClusterId, GroupName, InstanceId, Kind, ProviderId, ShardId, TenantId
from nstance.providers import instance_dirs, nodes, port
from support.eventually import eventually
from support.k8s_server import Server, serving

POOLS = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machinepools"
POOL = "machinepools/default/a.json"


@pytest.fixture
async def server(tmp_path: pathlib.Path) -> AsyncIterator[Server]:
    async with serving(tmp_path / "k8s") as found:
        yield found


async def make_pool(server: Server, **metadata: Any) -> Any:
    return await server.call("POST", POOLS, {"metadata": {"name": "a", **metadata}, "spec": {"replicas": 1}}, code=201)


async def replicas(server: Server) -> Any:
    [pool] = (await server.get(POOLS))["items"]
    return pool["spec"]["replicas"]


async def test_objects_lie_where_the_document_says(server: Server) -> None:
    await make_pool(server)
    await server.call("POST", "/api/v1/nodes", {"metadata": {"name": "n"}}, code=201)
    assert server.file(POOL)["spec"] == {"replicas": 1}
    assert server.file("nodes/n.json")["kind"] == "Node"
    assert (server.folder / POOL).read_text().startswith('{\n  "apiVersion"'), "a person can read it"
    await server.call("DELETE", "/api/v1/nodes/n")
    assert server.file("nodes/n.json") is None


async def test_an_edit_is_a_change_like_any_other(server: Server) -> None:
    before = await make_pool(server)
    async with server.stream(f"{POOLS}?watch=1&resourceVersion={before['metadata']['resourceVersion']}") as stream:
        edited = server.file(POOL)
        edited["spec"]["replicas"] = 5
        server.edit(POOL, edited)
        event = json.loads(await stream.content.readline())
    after = event["object"]
    assert (event["type"], after["spec"]["replicas"]) == ("MODIFIED", 5)
    assert after["metadata"]["generation"] == 2
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert int(after["metadata"]["resourceVersion"]) > int(before["metadata"]["resourceVersion"])
    assert server.file(POOL)["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]


async def test_own_writes_are_no_edits(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nstance.dev.k8s")
    await make_pool(server)
    for number in range(20):
        await server.call(
            "PATCH", f"{POOLS}/a", {"spec": {"replicas": number}}, Content_Type="application/merge-patch+json"
        )
    version = (await server.get(POOLS))["metadata"]["resourceVersion"]
    server.edit("configmaps/default/late.json", {"metadata": {}})  # found after all of the above were looked at
    await eventually(lambda: (server.file("configmaps/default/late.json") or {}).get("metadata"))
    assert int((await server.get(POOLS))["metadata"]["resourceVersion"]) == int(version) + 1
    assert [vars(each)["file"] for each in caplog.records] == [str(server.folder / "configmaps/default/late.json")]


async def test_a_file_without_metadata_becomes_an_object(server: Server) -> None:
    server.edit("configmaps/elsewhere/a.json", {"data": {"x": "y"}})
    made = await eventually(lambda: (server.file("configmaps/elsewhere/a.json") or {}).get("metadata"))
    assert made["uid"]
    assert (made["name"], made["namespace"]) == ("a", "elsewhere")
    found = await server.get("/api/v1/namespaces/elsewhere/configmaps/a")
    assert (found["data"], found["kind"]) == ({"x": "y"}, "ConfigMap")
    assert await server.get("/api/v1/namespaces/elsewhere")


async def test_the_status_may_be_written_by_hand(server: Server) -> None:
    await make_pool(server)
    server.edit(POOL, {**server.file(POOL), "status": {"replicas": 3}})
    assert (await server.get(f"{POOLS}/a"))["status"] == {"replicas": 3}, (
        "a file is looked at before its object is read"
    )


async def test_a_write_never_overwrites_an_edit_that_was_not_seen(server: Server) -> None:
    """The tmux provider may remove a Node at the moment the operator patches it: it must not come back."""
    made = await server.call("POST", "/api/v1/nodes", {"metadata": {"name": "n"}}, code=201)
    (server.folder / "nodes/n.json").unlink()
    patch = {"spec": {"unschedulable": True}}
    await server.call("PATCH", "/api/v1/nodes/n", patch, code=404, Content_Type="application/merge-patch+json")
    assert server.file("nodes/n.json") is None
    await make_pool(server)
    stale = await server.get(f"{POOLS}/a")
    server.edit(POOL, {**server.file(POOL), "spec": {"replicas": 9}})
    await server.call("PUT", f"{POOLS}/a", stale, code=409)
    assert await replicas(server) == 9
    assert made["metadata"]["name"] == "n"


async def test_a_removed_file_is_a_deletion(server: Server) -> None:
    await make_pool(server)
    (server.folder / POOL).unlink()
    await eventually(lambda: _empty(server))


async def _empty(server: Server) -> bool:
    return not (await server.get(POOLS))["items"]


async def test_finalizers_bring_a_removed_file_back(server: Server) -> None:
    await make_pool(server, finalizers=["x/y"])
    (server.folder / POOL).unlink()
    back = await eventually(lambda: server.file(POOL))
    assert back["metadata"]["deletionTimestamp"]
    back["metadata"]["finalizers"] = []
    server.edit(POOL, back)
    await eventually(lambda: not (server.folder / POOL).exists())
    assert await _empty(server)


async def test_broken_json_is_reported_and_the_last_valid_object_stays(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    await make_pool(server)
    with caplog.at_level(logging.WARNING, "nstance.dev.k8s"):
        server.edit(POOL, '{\n  "spec": {"replicas": 5,}\n}')
        await eventually(lambda: caplog.records)
    record = vars(caplog.records[0])
    assert (record["file"], record["line"]) == (str(server.folder / POOL), 2)
    assert await replicas(server) == 1
    server.edit(POOL, {"spec": {"replicas": 6}})
    await eventually(lambda: (server.file(POOL) or {}).get("metadata"))
    assert await replicas(server) == 6


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("machinepools/default/b.json", {"metadata": {"name": "c"}}, "failed to apply file"),
        ("machinepools/default/b.json", {"kind": "Node"}, "failed to apply file"),
        ("machinepools/default/b.json", [], "failed to apply file"),
        ("machinepools/b.json", {}, "wrong folder"),
        ("nodes/default/b.json", {}, "wrong folder"),
        ("nodes/B_.json", {}, "failed to apply file"),
    ],
)
async def test_files_that_are_no_objects(
    server: Server, caplog: pytest.LogCaptureFixture, path: str, body: Any, message: str
) -> None:
    with caplog.at_level(logging.WARNING, "nstance.dev.k8s"):
        server.edit(path, body)
        await eventually(lambda: caplog.records)
    assert message in caplog.records[0].getMessage()
    assert await _empty(server)
    assert server.file(path) == body, "it is left as it is, for its author to mend"


async def test_protected_namespaces_come_back(server: Server) -> None:
    (server.folder / "namespaces/default.json").unlink()
    await eventually(lambda: server.file("namespaces/default.json"))


async def test_a_copied_file_is_another_object(server: Server) -> None:
    first = await make_pool(server)
    copy = server.file(POOL)
    copy["metadata"]["name"] = "b"
    server.edit("machinepools/default/b.json", copy)
    second = await server.get(f"{POOLS}/b")
    assert second["metadata"]["uid"] != first["metadata"]["uid"]


async def test_the_tmux_providers_nodes_are_ours(server: Server) -> None:
    record = instance_dirs.Record(
        id=InstanceId("knc-1"),
        cluster=ClusterId("c"),
        shard=ShardId("s"),
        tenant=TenantId("default"),
        group=GroupName("test"),
        kind=Kind("knc"),
        template="default",
        created=1_700_000_000.0,
        command=(),
        env={},
    )
    provider_id = ProviderId("dev:///s/knc-1")
    vm = port.Vm(id=record.id, provider_id=provider_id, status=port.Status.RUNNING, ip4="127.0.0.1", hostname="knc-1")
    provider = nodes.Nodes(server.folder)
    provider.add(record, vm)
    found = await server.get("/api/v1/nodes/knc-1")
    assert found["spec"]["providerID"] == "dev:///s/knc-1"
    assert found["metadata"]["creationTimestamp"] == "2023-11-14T22:13:20Z"
    patch = {"spec": {"unschedulable": True}}
    await server.call("PATCH", "/api/v1/nodes/knc-1", patch, Content_Type="application/strategic-merge-patch+json")
    provider.add(record, vm)
    assert server.file("nodes/knc-1.json")["spec"]["unschedulable"] is True
    provider.remove(InstanceId("knc-1"), ProviderId("dev:///s/knc-1"))
    await server.call("GET", "/api/v1/nodes/knc-1", code=404)


async def test_everything_comes_back_after_a_restart(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "k8s"
    async with serving(folder) as server:
        before = await make_pool(server)
        await server.call("POST", "/api/v1/nodes", {"metadata": {"name": "n"}}, code=201)
        await server.call("DELETE", "/api/v1/nodes/n")
        version = (await server.get("/api/v1/nodes"))["metadata"]["resourceVersion"]
    (folder / "configmaps/default").mkdir(parents=True)
    (folder / "configmaps/default/offline.json").write_text('{"data": {}}')
    (folder / "machinepools/default/broken.json").write_text("{")
    async with serving(folder) as server:
        assert await server.get(f"{POOLS}/a") == before
        assert (await server.get("/api/v1/namespaces/default/configmaps/offline"))["metadata"]["uid"]
        listed = await server.get("/api/v1/nodes")
        assert int(listed["metadata"]["resourceVersion"]) > int(version), "deletions left no file, and still count"
        async with server.stream(f"/api/v1/nodes?watch=1&resourceVersion={version}") as stream:
            event = json.loads(await stream.content.readline())
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


async def test_kinds_that_share_a_plural_do_not_share_a_folder(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "k8s"
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    names = {"plural": "machines", "kind": "Machine"}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    async with serving(folder) as server:
        await server.call("POST", crds, {"metadata": {"name": "machines.example.com"}, "spec": spec}, code=201)
        for group in ("example.com/v1", "cluster.x-k8s.io/v1beta2"):
            path = f"/apis/{group}/namespaces/default/machines"
            await server.call("POST", path, {"metadata": {"name": "a"}}, code=201)
        assert server.file("machines/default/a.json")["apiVersion"] == "cluster.x-k8s.io/v1beta2"
        assert server.file("machines.example.com/default/a.json")["apiVersion"] == "example.com/v1"
    async with serving(folder) as server:
        found = await server.get("/apis/example.com/v1/namespaces/default/machines/a")
        assert found["apiVersion"] == "example.com/v1"
        server.edit("widgets.example.com/default/early.json", {})
        widgets = {**spec, "names": {"plural": "widgets", "kind": "Widget"}}
        await server.call("POST", crds, {"metadata": {"name": "widgets.example.com"}, "spec": widgets}, code=201)
        await eventually(lambda: server.file("widgets.example.com/default/early.json").get("metadata"))


async def test_what_cannot_be_kept_has_not_happened(server: Server) -> None:
    (server.folder / "secrets").write_text("somebody's file where a folder should be")
    secrets = "/api/v1/namespaces/default/secrets"
    version = (await server.get(secrets))["metadata"]["resourceVersion"]
    refused = await server.call("POST", secrets, {"metadata": {"name": "a"}}, code=500)
    assert "failed to store the object" in refused["message"]
    after = await server.get(secrets)
    assert (after["items"], after["metadata"]["resourceVersion"]) == ([], version)


def test_a_file_that_goes_while_it_is_read_does_not_come_back(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program makes a Node's file and removes it at once: what we would add to it must not make it again."""
    files = Files(tmp_path / "k8s", clocks.SystemClock(), clocks.SystemRng())
    path = tmp_path / "k8s" / "nodes" / "n.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"metadata": {"name": "n"}}')
    adopt = files.api.adopt

    def slowly(*arguments: Any, **named: Any) -> Any:
        path.unlink()
        return adopt(*arguments, **named)

    monkeypatch.setattr(files.api, "adopt", slowly)
    files.check(path)
    files.check(path)
    assert not path.exists()
    assert files.api.list(files.api.served("", "v1", "nodes")).items == []


def test_versions_never_go_back_however_often_it_restarts(tmp_path: pathlib.Path) -> None:
    last = 0
    for _ in range(3):
        files = Files(tmp_path / "k8s", clocks.SystemClock(), clocks.SystemRng())
        served = files.api.served("", "v1", "nodes")
        for _ in range(1200):  # beyond the reserved block
            files.api.create(served, {"metadata": {"name": "n"}})
            files.api.delete(Target(served, "n"))
        assert files.api.store.version > last + 2400
        last = files.api.store.version
