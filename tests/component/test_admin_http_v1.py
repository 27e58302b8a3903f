"""Version 1 of the HTTP API: every route against a real shard, and the description that is generated from them."""

import asyncio
import gzip
import ipaddress
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from component.http_world import (
    DEAD,
    GUARDED,
    OPEN,
    TOKEN,
    check,
    get_json,
    lines,
    post,
    send,
    served,
    serving,
    shard_clients,
)
from component.scraped_fleet import answer_spot_notice
from component.whole_server import SECONDS, SHARD, World, config, states
from nstance.admin.http import access, rate_limit
from nstance.admin.http.access_log import AccessLog
from nstance.admin.http.routes import Extras
from nstance.admin.http.v1 import schemas
from nstance.model.roles import Role
from support.eventually import eventually

STATIC = {"default": {"web": {"template": "web", "size": 2, "drain_timeout": "0"}}}
HERE = {"shard": str(SHARD)}
DRY = {**HERE, "dry_run": "true"}
STREAM = {"Accept": "text/event-stream"}
SETTINGS = config(groups=STATIC)


async def ready(browser: Any, group: str, size: int) -> None:
    async def found() -> bool:
        groups = (await get_json(browser, f"/v1/groups/{group}"))["groups"]
        return bool(groups[0]["ready_size"] == size)

    await eventually(found)


async def alarmed(browser: Any, kinds: list[str]) -> None:
    async def found() -> bool:  # alarms come from a watch, so shortly after the change
        return [each["kind"] for each in (await get_json(browser, "/v1/alarms"))["alarms"]] == kinds

    await eventually(found)


async def test_a_spot_storm_needs_attention_after_its_end_too(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups={"default": {"web": {"template": "web", "size": 3}}})) as world:
        await world.start()
        async with served(world) as browser:
            await ready(browser, "web", 3)
            await alarmed(browser, [])
            await answer_spot_notice(world)
            await ready(browser, "web", 3)
            await alarmed(browser, ["interruptions"])
            [status] = (await get_json(browser, "/v1/status"))["shards"]
        [lost] = status["alarms"]
        assert lost["message"] == "1 instance lost within the last five minutes: 1 spot-termination"
        assert status["healthy"], "it is made good"


async def test_the_life_of_a_group_and_its_instances(tmp_path: Path) -> None:
    async with World(tmp_path, SETTINGS) as world:
        await world.start()
        async with served(world, guard=OPEN) as browser:
            new = {"group": "api", "template": "web", "size": 1, "vars": {"greeting": "hi"}, "drain_timeout": "0"}
            planned = await post(browser, "/v1/groups", new, **DRY)
            assert [each["action"] for each in planned["plan"]] == ["create"]
            assert len((await get_json(browser, "/v1/groups"))["groups"]) == 1
            created = await post(browser, "/v1/groups", new, **HERE)
            assert (created["groups"][0]["group"], created["dry_run"]) == ("api", False)
            await post(browser, "/v1/groups", new, 409, **HERE)
            await ready(browser, "api", 1)

            scaled = await post(browser, "/v1/groups/api/scale", {"size": 2}, **HERE)
            assert scaled["groups"][0]["size"] == 2
            assert "for local" in scaled["groups"][0]["size_source"]["by"]
            await ready(browser, "api", 2)
            updated = await send(browser, "PATCH", "/v1/groups/api", {"instance_type": "large"}, **DRY)
            assert updated["rollouts"][0]["instances"] == 2
            assert (await post(browser, "/v1/groups/api/plan", {"size": 4}))["plan"][0]["action"] == "create"
            assert (await get_json(browser, "/v1/groups/api/plan"))["plan"] == []

            [one, two] = (await get_json(browser, "/v1/instances", group="api"))["instances"]
            shown = (await get_json(browser, f"/v1/instances/{one['instance_id']}"))["instances"][0]
            assert shown["report"]["version"] == "test"
            path = f"/v1/instances/{one['instance_id']}"
            plan = await post(browser, f"{path}/replace", None, **DRY)
            assert [each["action"] for each in plan["plan"]] == ["create", "drain"]
            await post(browser, f"{path}/replace", None, **HERE)
            await eventually(lambda: states(world, "api").get(one["instance_id"], "deleted") == "deleted")
            await send(browser, "DELETE", f"/v1/instances/{two['instance_id']}", None, **HERE)
            await post(browser, f"/v1/instances/{two['instance_id']}/drained", None, 409, **HERE)

            await post(browser, "/v1/groups/api/pause", None, **HERE)
            assert (await get_json(browser, "/v1/groups/api"))["groups"][0]["paused"]
            await alarmed(browser, ["paused"])
            await post(browser, "/v1/resume", None, **HERE)
            extra = await post(browser, "/v1/instances", {"group": "api"}, **HERE)
            assert extra["instances"][0]["on_demand"]
            await send(browser, "DELETE", "/v1/groups/api", None, **HERE)
            await get_json(browser, "/v1/groups/api", 404)
            assert (await get_json(browser, "/v1/groups/web/history"))["groups"][0]["shard"] == SHARD
            assert (await get_json(browser, "/v1/groups/web/sizes"))["groups"][0]["sizes"][-1]["size"] == 2


async def test_changes_are_off_by_default_and_plans_are_not(tmp_path: Path) -> None:
    async with World(tmp_path, SETTINGS, agents=False) as world:
        await world.start()
        async with served(world) as browser:
            session = await get_json(browser, "/v1/session")
            assert (session["can_change"], session["person"]) == (False, "local")
            id = next(iter(states(world, "web")))
            for method, path, body in (
                ("POST", "/v1/groups", {"group": "api", "template": "web"}),
                ("PATCH", "/v1/groups/web", {"size": 3}),
                ("DELETE", "/v1/groups/web", None),
                ("POST", "/v1/groups/web/scale", {"size": 3}),
                ("POST", "/v1/groups/web/pause", None),
                ("POST", "/v1/groups/web/resume", None),
                ("POST", "/v1/groups/web/rollback", None),
                ("POST", "/v1/groups/web/resume-rollout", None),
                ("POST", "/v1/pause", None),
                ("POST", "/v1/resume", None),
                ("POST", "/v1/instances", {"group": "web"}),
                ("DELETE", f"/v1/instances/{id}", None),
                ("POST", f"/v1/instances/{id}/replace", None),
                ("POST", f"/v1/instances/{id}/drained", None),
                ("POST", f"/v1/instances/{id}/adopt", None),
                ("POST", f"/v1/instances/{id}/release", None),
                ("POST", "/v1/config/refresh", None),
                ("POST", "/v1/operators/opr-01jw51srryegh9snf9cmeh3k4q/revoke", None),
            ):
                problem = await send(browser, method, path, body, 403, **HERE)
                assert problem["detail"] == access.READ_ONLY
            described = (await get_json(browser, "/v1/openapi.json"))["paths"]
            assert len([1 for some in described.values() for method in some if method != "get"]) == 18 + 5
            plan = await post(browser, "/v1/groups/web/scale", {"size": 3}, **DRY)
            assert plan["plan"][0]["action"] == "create"
            assert (await get_json(browser, "/v1/groups"))["groups"][0]["size"] == 2


async def test_problems_are_problem_details(tmp_path: Path) -> None:
    async with World(tmp_path, SETTINGS, agents=False) as world:
        await world.start()
        async with served(world, guard=OPEN, dead=True) as browser:
            wrong: tuple[tuple[str, str, Any, int, dict[str, str], str], ...] = (
                ("GET", "/v1/nowhere", None, 404, {}, "there is no such address"),
                ("PUT", "/v1/groups", None, 405, {}, "expected GET, HEAD, POST, found PUT"),
                ("GET", "/v1/groups", None, 404, {"shard": "other"}, "there is no shard other"),
                ("GET", "/v1/groups", None, 400, {"size": "1"}, "unknown query size"),
                ("GET", "/v1/groups/wob", None, 404, HERE, "did you mean web?"),
                ("GET", "/v1/instances", None, 400, {"limit": "0"}, "limit: expected a whole number from 1"),
                ("GET", "/v1/instances", None, 400, {"cursor": "../x"}, "cursor: expected"),
                ("GET", "/v1/instances/nonsense", None, 404, {}, "expected an instance ID"),
                ("GET", "/v1/events", None, 400, {"reason": "A B"}, "reason: expected"),
                ("POST", "/v1/groups/web/scale", {"size": 3}, 400, {}, "exactly one of"),
                ("POST", "/v1/groups/web/scale", {"size": 3}, 400, {**HERE, "all_shards": "true"}, "exactly one of"),
                ("POST", "/v1/groups/web/scale", {"size": -1}, 400, HERE, "size: expected a whole number"),
                ("POST", "/v1/groups/web/scale", {"size": True}, 400, HERE, "size: expected a whole number"),
                ("POST", "/v1/groups/web/scale", {}, 400, HERE, "found nothing"),
                ("POST", "/v1/groups/web/scale", {"size": 1, "x": 1}, 400, HERE, "unknown field x"),
                ("POST", "/v1/groups/web/scale", [], 400, HERE, "expected a JSON object"),
                ("POST", "/v1/groups/web/scale", None, 415, HERE, "Content-Type"),
                ("PATCH", "/v1/groups/web", {}, 400, HERE, "nothing to change"),
                ("PATCH", "/v1/groups/web", {"size": 1, "unset_size": True}, 400, HERE, "either size or unset_size"),
                ("GET", "/v1/cluster/config", None, 501, HERE, "started without storage"),
                ("GET", "/v1/forecasts/f1", None, 404, {}, "no such forecast"),
                ("GET", "/v1/groups", None, 503, {"shard": "dead"}, "no answer: 127.0.0.1:1"),
            )
            for method, path, body, code, query, words in wrong:
                async with browser.request(method, path, params=query, json=body) as answer:
                    problem = await answer.json(content_type="application/problem+json")
                    assert (answer.status, problem["status"]) == (code, code), problem
                    assert words in problem["detail"], problem
                    check(problem, schemas.PROBLEM, schemas.SCHEMAS)
            both = await get_json(browser, "/v1/groups", 207)
            assert both["errors"][0]["shard"] == "dead"
            assert len(both["groups"]) == 1


async def test_etags_compression_and_pages(tmp_path: Path) -> None:
    settings = config(groups={"default": {"web": {"template": "web", "size": 7}}})
    async with World(tmp_path, settings, agents=False) as world:
        await world.start()
        await eventually(lambda: len(states(world, "web")) == 7)
        async with served(world, guard=OPEN) as browser:
            async with browser.get("/v1/groups") as answer:
                etag, first = answer.headers["ETag"], await answer.json()
            async with browser.get("/v1/groups", headers={"If-None-Match": f'"x", {etag}'}) as answer:
                assert (answer.status, await answer.read()) == (304, b"")
            old = {"If-Match": f'"{first["groups"][0]["etag"]}"'}
            path = "/v1/groups/web/scale"
            async with browser.post(path, params=HERE, json={"size": 6}, headers=old) as answer:
                assert answer.status == 200
            async with browser.post(path, params=HERE, json={"size": 5}, headers=old) as answer:
                assert answer.status == 412
                assert "was changed in the meantime" in (await answer.json(content_type=None))["detail"]
            async with browser.get("/v1/groups", headers={"If-None-Match": etag}) as answer:
                assert answer.status == 200

            seen: list[str] = []
            cursor: dict[str, str] = {}
            while True:
                page = await get_json(browser, "/v1/instances", limit="3", **cursor)
                seen += [each["instance_id"] for each in page["instances"]]
                if "next" not in page:
                    break
                assert len(page["instances"]) == 3
                cursor = {"cursor": page["next"]}
            assert seen == sorted(set(seen))
            assert set(seen) >= {id for id, state in states(world, "web").items() if state == "starting"}
            url = browser.make_url("/v1/instances")
            async with aiohttp.ClientSession(auto_decompress=False) as raw, raw.get(url) as answer:
                assert answer.headers["Content-Encoding"] == "gzip"
                assert json.loads(gzip.decompress(await answer.read()))["instances"]


async def test_no_change_of_a_group_ignores_if_match(tmp_path: Path) -> None:
    """A condition that is not checked would let a stale page delete what somebody else has just changed."""
    async with World(tmp_path, SETTINGS, agents=False) as world:
        await world.start()
        async with served(world, guard=OPEN) as browser:
            await post(browser, "/v1/groups", {"group": "extra", "template": "web", "size": 1}, **HERE)
            [first] = (await get_json(browser, "/v1/groups/extra"))["groups"]
            await post(browser, "/v1/groups/extra/scale", {"size": 2}, **HERE)
            [now] = (await get_json(browser, "/v1/groups/extra"))["groups"]
            rows: list[tuple[str, str, Any]] = [
                ("PATCH", "/v1/groups/extra", {"size": 3}),
                ("POST", "/v1/groups/extra/scale", {"size": 3}),
                ("POST", "/v1/groups/extra/pause", None),
                ("POST", "/v1/groups/extra/resume", None),
                ("POST", "/v1/groups/extra/rollback", None),
                ("POST", "/v1/groups/extra/resume-rollout", None),
                ("DELETE", "/v1/groups/extra", None),
            ]
            described = (await get_json(browser, "/v1/openapi.json"))["paths"]
            changes = {
                (method, path) for path, methods in described.items() for method in methods if "/{group}/" in f"{path}/"
            }
            assert len(rows) == len({row for row in changes if row[0] != "get" and not row[1].endswith("/plan")})

            async def ask(etag: str, method: str, path: str, body: Any, **query: str) -> int:
                headers = {"If-Match": f'"{etag}"'}
                async with browser.request(method, path, params=HERE | query, json=body, headers=headers) as answer:
                    return answer.status

            assert {await ask(first["etag"], *row) for row in rows} == {412}
            [after] = (await get_json(browser, "/v1/groups/extra"))["groups"]
            assert (after["etag"], after["size"], after["paused"]) == (now["etag"], 2, False)
            assert await ask(now["etag"], *rows[-1], dry_run="true") == 200
            assert await ask("*", *rows[-1], dry_run="true") == 200
            assert await ask(now["etag"], "POST", "/v1/pause", None) == 400  # this is about no group
            assert await ask(now["etag"], *rows[-1]) == 200


async def test_events_page_filter_and_download(tmp_path: Path) -> None:
    async with World(tmp_path, SETTINGS) as world:
        await world.start()
        async with served(world, guard=OPEN) as browser:
            await ready(browser, "web", 2)
            first = await get_json(browser, "/v1/events", reason="registered,ready", limit="1000")
            assert {each["reason"] for each in first["events"]} == {"registered", "ready"}
            nothing = await get_json(browser, "/v1/events", cursor=first["next"], reason="config")
            assert nothing["events"] == []
            await post(browser, "/v1/groups/web/scale", {"size": 3}, **HERE)

            async def later() -> Any:
                return (await get_json(browser, "/v1/events", cursor=first["next"], reason="config"))["events"]

            [event] = await eventually(later)
            assert "for local" in event["message"]
            async with browser.get("/v1/events", params={"format": "ndjson"}) as answer:
                assert "attachment" in answer.headers["Content-Disposition"]
                assert json.loads((await answer.text()).splitlines()[-1])["id"] > 0
        async with served(world, dead=True, role=Role.VIEWER) as browser:
            assert "errors" in await get_json(browser, "/v1/events", 207)
            problem = await get_json(browser, "/v1/events", 503, format="ndjson")
            assert [each["shard"] for each in problem["errors"]] == [DEAD]


async def test_the_fleet_is_streamed_over_a_change_of_leaders(tmp_path: Path) -> None:
    """Groups, instances and events: nothing is missed and no event comes twice."""
    async with World(tmp_path, SETTINGS) as world:
        await world.start("a")
        await world.start("b", lead=False)
        async with served(world, guard=OPEN) as browser, asyncio.timeout(SECONDS):
            async with browser.get("/v1/watch", headers=STREAM) as answer:
                coming = lines(answer)
                state = await anext(coming)
                assert state["event"] == "snapshot"
                instances, events, groups, leaders = {}, {}, {}, set()
                while True:
                    data = state["data"]
                    for row in data["instances"]:
                        instances[row["id"]] = row
                    for _, id in data.get("gone_instances", ()):
                        instances.pop(id, None)
                    for group in data["groups"]:
                        groups[group["group"]] = group
                    for event in data["events"]:
                        assert event["id"] not in events
                        events[event["id"]] = event
                    leaders |= {each["control_plane"]["leader"] for each in data["shards"] if each["control_plane"]}
                    if leaders == {"a"} and sum("ready" in row for row in instances.values()) == 2:
                        await world.servers["a"].crash()
                        del world.servers["a"]
                        leaders.add("killed")
                    if {"b", "killed"} <= leaders and groups["web"]["size"] == 2:
                        await post(browser, "/v1/groups/web/scale", {"size": 3}, **HERE)
                    if sum("ready" in row for row in instances.values()) == 3:
                        break
                    state = await anext(coming)
                last = state["id"]
            await post(browser, "/v1/groups/web/scale", {"size": 2}, **HERE)
            await eventually(lambda: [*states(world, "web").values()].count("running") == 2)
            async with browser.get("/v1/watch", headers={**STREAM, "Last-Event-ID": last}) as answer:
                coming = lines(answer)
                missed: list[Any] = []
                while not any(each["reason"] == "scale-down" for each in missed):
                    missed += (await anext(coming))["data"]["events"]
            listed = await get_json(browser, "/v1/events", limit="1000")
            known = {each["id"] for each in listed["events"]}
            assert set(events) <= known


async def test_a_reconnect_to_a_new_server_before_a_shard_answers_misses_no_event(tmp_path: Path) -> None:
    async with World(tmp_path, SETTINGS, agents=False) as world, asyncio.timeout(SECONDS):
        await world.start("a")
        async with served(world, guard=OPEN) as browser:
            await ready(browser, "web", 0)
            async with browser.get("/v1/watch", headers=STREAM) as answer:
                coming = lines(answer)
                while "id" not in (message := await anext(coming)):
                    pass
                last = message["id"]
            await post(browser, "/v1/groups/web/scale", {"size": 3}, **HERE)
        found = await shard_clients(world, role=Role.VIEWER)
        await world.servers["a"].stop()
        del world.servers["a"]
        async with (
            serving(world, found, guard=OPEN) as browser,
            browser.get("/v1/watch", headers={**STREAM, "Last-Event-ID": last}) as answer,
        ):
            coming = lines(answer)
            missed = await anext(coming)
            assert (missed["event"], missed["data"]) == ("missed", {"events": [], "incomplete": [SHARD]})
            await world.start("b")
            events: list[Any] = []
            while not any("2 → 3" in each["message"] for each in events):
                events += (await anext(coming))["data"]["events"]


async def test_sessions_of_browsers(tmp_path: Path) -> None:
    async with World(tmp_path, SETTINGS, agents=False) as world:
        await world.start()
        async with served(world, guard=GUARDED) as browser:
            await get_json(browser, "/v1/groups", 401)
            await get_json(browser, "/v1/session", 401)
            await post(browser, "/v1/session", {"token": "wrong"}, 401)
            async with browser.post("/v1/session", json={"token": TOKEN}) as answer:
                cookie = answer.headers["Set-Cookie"]
                session = await answer.json()
            for word in ("HttpOnly", "SameSite=Strict", "Path=/", "nstance-session="):
                assert word in cookie
            assert (session["can_change"], session["person"]) == (True, "token")
            await get_json(browser, "/v1/groups")  # the test client keeps cookies, as a browser does
            scale, body = "/v1/groups/web/scale", {"size": 3}
            await post(browser, scale, body, 403, **HERE)
            for token, code in (("", 403), ("0" * 64, 403), ("ä", 403), (session["csrf_token"], 200)):
                headers = {"X-CSRF-Token": token}
                async with browser.post(scale, params=HERE, json=body, headers=headers) as answer:
                    assert answer.status == code, await answer.text()
            # The older routes take no session.
            await get_json(browser, "/groups", 401, **HERE)
            async with browser.delete("/v1/session") as answer:
                assert 'nstance-session=""' in answer.headers["Set-Cookie"]
            await get_json(browser, "/v1/groups", 401)
            value = re.findall("nstance-session=([^;]+)", cookie)[0]
            # `value`: a copy that somebody kept. The session has ended.
            for forged in (
                value,
                value[:-1] + ("0" if value[-1] != "0" else "1"),
                value.partition(".")[0] + ".",
                "x",
                ".",
            ):
                async with browser.get("/v1/groups", headers={"Cookie": f"nstance-session={forged}"}) as answer:
                    assert answer.status == 401
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            async with browser.post(scale, params=HERE, json=body, headers=bearer) as answer:
                assert answer.status == 200


async def test_guessing_tokens_and_floods_are_slowed_down(tmp_path: Path) -> None:
    extras = Extras(requests=rate_limit.Rate(0.001, 30.0))
    async with World(tmp_path, SETTINGS, agents=False) as world:
        await world.start()
        async with served(world, guard=GUARDED, extras=extras) as browser:
            codes = []
            for _ in range(int(rate_limit.LOGINS.burst) + 1):
                async with browser.post("/v1/session", json={"token": "guess"}) as answer:
                    codes.append(answer.status)
            assert codes == [401] * int(rate_limit.LOGINS.burst) + [429]
            for _ in range(30):
                async with browser.get("/v1/groups") as answer:
                    last = answer.status, answer.headers.get("Retry-After")
            assert last[0] == 429
            assert int(last[1] or 0) > 0
            for path, code in (("/groups", 429), ("/health", 200), ("/", 200)):
                async with browser.get(path) as answer:
                    assert answer.status == code


async def test_a_guesser_behind_a_trusted_proxy_slows_nobody_else_down(tmp_path: Path) -> None:
    async def log_in(browser: Any, forwarded: str, token: str = TOKEN) -> int:
        headers = {"X-Forwarded-For": forwarded}
        async with browser.post("/v1/session", json={"token": token}, headers=headers) as answer:
            return int(answer.status)

    async with World(tmp_path, SETTINGS, agents=False) as world:
        await world.start()
        proxies = [ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("10.1.0.0/16")]
        guard, log = replace(GUARDED, trusted_proxies=proxies), tmp_path / "access.log"
        written = AccessLog(str(log), world.clock)
        async with served(world, guard=guard, extras=Extras(log=written)) as browser:
            for number in range(int(rate_limit.LOGINS.burst)):
                # What a client writes itself comes before what the proxies add.
                assert await log_in(browser, f"192.0.2.{number}, 203.0.113.9, 10.1.0.7", "guess") == 401
            assert await log_in(browser, "203.0.113.9") == 429
            assert await log_in(browser, "203.0.113.10") == 200
            for nonsense in ("", "unknown", "203.0.113.10, nonsense"):  # those are of the proxy itself
                assert await log_in(browser, nonsense) == 200
        written.close()
        assert {json.loads(line)["client"] for line in log.read_text().splitlines()} == {
            "203.0.113.9",
            "203.0.113.10",
            "127.0.0.1",
        }
        async with served(world, guard=GUARDED, role=Role.VIEWER) as browser:  # nobody is trusted
            codes = [await log_in(browser, f"192.0.2.{number}", "guess") for number in range(6)]
            assert codes[-1] == 429


async def test_browsers_behind_one_address_have_a_rate_each(tmp_path: Path) -> None:
    extras = Extras(requests=rate_limit.Rate(0.001, 4.0))
    async with World(tmp_path, SETTINGS, agents=False) as world:
        await world.start()
        async with served(world, guard=OPEN, extras=extras) as browser:
            cookies = []
            for _ in range(2):
                browser.session.cookie_jar.clear()
                async with browser.get("/v1/session", headers={"Sec-Fetch-Site": "same-origin"}) as answer:
                    cookies.append(answer.cookies["nstance-session"].value)
            browser.session.cookie_jar.clear()

            async def ask(cookie: str) -> int:
                headers = {"Cookie": f"nstance-session={cookie}"} if cookie else {}
                async with browser.get("/v1/session", headers=headers) as answer:
                    return answer.status

            for cookie in cookies:
                assert [await ask(cookie) for _ in range(5)] == [200] * 4 + [429]
            # A cookie that is not ours counts for its address.
            assert [await ask(cookie) for cookie in ("", "forged.0", "forged.1")] == [200, 200, 429]


async def test_a_browser_on_this_machine_needs_the_token_against_forgery(tmp_path: Path) -> None:
    async with World(tmp_path, SETTINGS, agents=False) as world:
        await world.start()
        async with served(world, guard=OPEN) as browser:
            scale, body = "/v1/groups/web/scale", {"size": 3}
            origin = {"Origin": f"http://{browser.host}:{browser.port}", "Sec-Fetch-Site": "same-origin"}
            async with browser.post(scale, params=HERE, json=body, headers=origin) as answer:
                assert answer.status == 403
            async with browser.get("/v1/session", headers=origin) as answer:
                token = (await answer.json())["csrf_token"]
            async with browser.post(scale, params=HERE, json=body, headers={**origin, "X-CSRF-Token": token}) as answer:
                assert answer.status == 200
            foreign = {"Origin": "https://evil.example", "X-CSRF-Token": token}
            async with browser.post(scale, params=HERE, json=body, headers=foreign) as answer:
                assert answer.status == 403


async def test_the_access_log_names_persons_and_no_secrets(tmp_path: Path) -> None:
    async with World(tmp_path, SETTINGS, agents=False) as world:
        await world.start()
        log = AccessLog(str(tmp_path / "log"), world.clock)
        async with served(world, guard=GUARDED, extras=Extras(log=log)) as browser:
            await get_json(browser, "/v1/groups", 401)
            async with browser.get("/v1/groups", headers={"Authorization": f"Bearer {TOKEN}"}) as answer:
                assert answer.status == 200
        log.close()
        found = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        assert [(each["status"], each["person"], each["path"]) for each in found] == [
            (401, None, "/v1/groups"),
            (200, "token", "/v1/groups"),
        ]
        assert TOKEN not in (tmp_path / "log").read_text()


async def test_the_description_is_complete_and_true(tmp_path: Path) -> None:
    async with World(tmp_path, SETTINGS) as world:
        await world.start()
        async with served(world, guard=OPEN) as browser:
            await ready(browser, "web", 2)
            document = await get_json(browser, "/v1/openapi.json")
            described = {(method.upper(), path) for path, some in document["paths"].items() for method in some}
            assert isinstance(browser.app, aiohttp.web.Application)
            assert described == {
                (route.method, route.resource.canonical)
                for route in browser.app.router.routes()
                if route.resource and route.method != "HEAD" and route.resource.canonical.startswith("/v1/")
            }
            public = {path for path, some in document["paths"].items() for each in some.values() if "security" in each}
            assert public == access.PUBLIC_V1_PATHS
            ids = [each["operationId"] for some in document["paths"].values() for each in some.values()]
            assert len(set(ids)) == len(ids)
            named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
            assert named == document["components"]["schemas"].keys()
            names = {"group": "web", "instance": next(iter(states(world, "web")))}
            for path, some in document["paths"].items():
                for method, operation in some.items():
                    if (
                        method != "get"
                        or "cluster" in path
                        or "forecast" in path
                        or path == "/v1/watch"
                        or "login" in path
                    ):
                        continue
                    async with browser.get(path.format(**names)) as answer:
                        assert answer.status == 200, (path, await answer.text())
                        assert answer.content_type in operation["responses"]["200"]["content"]
                        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
                        check(await answer.json(), schema, schemas.SCHEMAS)
            plan = await post(browser, "/v1/groups/web/scale", {"size": 3}, **DRY)
            check(plan, schemas.SCHEMAS["Change"], schemas.SCHEMAS)
            refreshed = await post(browser, "/v1/config/refresh", None, **DRY)
            check(
                refreshed,
                document["paths"]["/v1/config/refresh"]["post"]["responses"]["200"]["content"]["application/json"][
                    "schema"
                ],
                schemas.SCHEMAS,
            )
