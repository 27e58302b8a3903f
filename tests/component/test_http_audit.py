"""The audit and the operators over HTTP, from the bucket of a whole server."""

import json
from pathlib import Path
from typing import Any

from component.http_world import OPEN, check, get_json, post, served
from component.whole_server import SHARD, World, config
from nstance.admin.http.routes import Extras
from nstance.admin.http.v1 import schemas
from nstance.admin.options import KeyLocation, Target
from nstance.model.roles import Role
from support.eventually import eventually

HERE = {"shard": str(SHARD)}


def bucket(directory: Path) -> Target:
    return Target(
        cluster=None,
        provider="file",
        bucket=str(directory),
        prefix="",
        cluster_prefix="cluster/",
        secrets="object-storage",
        secrets_prefix=None,
        key=KeyLocation(provider="env", source=""),
        old_keys=(),
        insecure_dev=False,
    )


async def test_the_audit_over_http(tmp_path: Path) -> None:
    directory = tmp_path / "bucket"
    async with World(
        tmp_path, config(groups={"default": {"web": {"template": "web", "size": 1}}}), agents=False
    ) as world:
        await world.start()
        extras = Extras(storage=bucket(directory))
        async with served(world, guard=OPEN, extras=extras, role=Role.ADMIN) as browser:
            await post(browser, "/v1/groups/web/scale", {"size": 2}, **HERE)
            await post(browser, "/v1/groups/web/pause", None, **HERE)

            described = (await get_json(browser, "/v1/openapi.json"))["paths"]

            async def read(path: str, code: int = 200, /, **query: str) -> Any:
                found = await get_json(browser, path, code, **query)
                if code == 200:
                    answer = described[path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
                    check(found, answer, schemas.SCHEMAS)
                return found

            async def pauses() -> bool:  # events are written shortly after what they are about
                world.copy_bucket(directory)
                found = await read("/v1/cluster/audit", **HERE)
                return any("paused" in each["message"] for each in found["entries"])

            await eventually(pauses)
            found = await read("/v1/cluster/audit", **HERE)
            assert found["problems"] == []
            assert [(each["action"], each["persons"], each["group"]) for each in found["entries"]][:1] == [
                ("config", ["local"], "web")
            ]
            assert "size 1 → 2" in found["entries"][0]["message"]
            assert len((await read("/v1/cluster/audit", **HERE, limit="1"))["entries"]) == 1
            assert (await read("/v1/cluster/audit", **HERE, person="ada"))["entries"] == []
            assert (await read("/v1/cluster/audit", **HERE, until="2020-01-01T00:00:00Z"))["entries"] == []
            more = await read("/v1/cluster/audit", **HERE, all="true", since="2020-01-01")
            assert len(more["entries"]) > len(found["entries"])
            assert "expected a time" in (await read("/v1/cluster/audit", 400, **HERE, since="yesterday"))["detail"]

            verified = await read("/v1/cluster/audit/verify", **HERE)
            assert (verified["problems"], verified["first_slot"]) == ([], 1)
            noted = await read("/v1/cluster/audit/verify", **HERE, head=verified["head"])
            assert noted["problems"] == []
            slot = max((directory / f"shard/{SHARD}/journal").iterdir())
            slot.write_text(json.dumps({**json.loads(slot.read_text()), "at": 1.0}))
            [problem] = (await read("/v1/cluster/audit/verify", **HERE))["problems"]
            assert problem["slot"] == verified["last_slot"]
            assert (await read("/v1/cluster/audit", **HERE))["problems"][0]["slot"] == problem["slot"]

            [operator] = (await read("/v1/cluster/operators"))["operators"]
            assert (operator["role"], operator["revoked"]) == ("admin", None)
        async with served(world, guard=OPEN, tenant="acme") as browser:
            assert "--storage-bucket" in (await get_json(browser, "/v1/cluster/audit", 501, **HERE))["detail"]
