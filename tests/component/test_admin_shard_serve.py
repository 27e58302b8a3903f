"""`nstance-admin serve`: its JSON, its description, its doors."""

import asyncio
import datetime
import json
import os
import re
import signal
import ssl
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from component.admin_shell import operator_addresses, shell
from component.http_world import GUARDED, OPEN, TOKEN, check, get_json, lines, post, served
from component.whole_server import SECONDS, SHARD, World, config
from nstance.admin.http import access, routes, server, stream, unversioned
from nstance.admin.http.access import Access
from support import ports

STATIC = {"default": {"web": {"template": "web", "size": 2, "drain_timeout": "0"}}}
APART = ("/v1/", "/dashboard/")  # described in /v1/openapi.json, and files
HERE = {"shard": str(SHARD)}
ALL = {"all_shards": "true"}
free_port = ports.free_port


async def test_the_three_documented_calls_word_by_word(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start()
        async with served(world) as browser:
            etag = world.leader.lead_now.configuration.version
            status = await get_json(browser, "/config/status", **HERE)
            modified = status["shards"][0].pop("last_modified")
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", modified)
            size = world.leader.lead_now.configuration.size
            assert status == {"shards": [{"shard": SHARD, "etag": etag, "size": size}]}
            refreshed = await post(browser, "/config/refresh", **ALL)
            assert refreshed == {"shards": [{"shard": SHARD, "updated": False, "etag": etag}]}
            scaled = await post(browser, "/group/scale", {"group": "web", "size": 5}, **HERE)
            assert scaled == {"results": [{"shard": SHARD, "group": "web", "size": 5}]}
            assert (await get_json(browser, "/health")) == {"status": "ok"}


async def test_groups_instances_and_events(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start()
        await (await shell(world)).ok("wait")
        (world.dir / "identity-default").rename(world.dir / "used")
        async with served(world) as browser:
            [group] = (await get_json(browser, "/groups", **ALL))["groups"]
            assert (group["group"], group["size"], group["ready_size"]) == ("web", 2, 2)
            found = (await get_json(browser, "/instances", group="web", **HERE))["instances"]
            assert [each["state"] for each in found] == ["running"] * 2
            assert (await get_json(browser, "/instances", 404, group="wob", **HERE))["error"]
            events = (await get_json(browser, "/events", group="web", limit="4", **HERE))["events"]
            assert sorted(each["reason"] for each in events) == ["ready"] * 2 + ["registered"] * 2


async def test_a_dead_shard_is_reported_with_the_others(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC), agents=False) as world:
        await world.start()
        async with served(world, dead=True) as browser:
            both = await get_json(browser, "/groups", 207, **ALL)
            assert [each["shard"] for each in both["groups"]] == [SHARD]
            [error] = both["errors"]
            assert error["shard"] == "dead"
            assert "no answer: 127.0.0.1:1" in error["error"]
            gone = await get_json(browser, "/groups", 503, shard="dead")
            assert (gone["groups"], gone["error"]) == ([], gone["errors"][0]["error"])
            both = await post(browser, "/group/scale", {"group": "web", "size": 3}, 207, **ALL)
            assert both["results"] == [{"shard": SHARD, "group": "web", "size": 3}]


async def test_a_refused_config_is_a_conflict_with_its_problems(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC), agents=False) as world:
        await world.start()
        async with served(world) as browser:
            world.configure(config(groups={"default": {"web": {"template": "wob"}}}))
            reply = await post(browser, "/config/refresh", None, 409, **ALL)
            assert reply["shards"][0]["updated"] is False
            assert "wob" in reply["error"]


async def test_wrong_requests_are_refused_with_a_sentence_and_change_nothing(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC), agents=False) as world:
        await world.start()
        async with served(world) as browser:
            assert "exactly one of" in (await get_json(browser, "/groups", 400))["error"]
            assert "exactly one of" in (await get_json(browser, "/groups", 400, **HERE, **ALL))["error"]
            assert "true or false" in (await get_json(browser, "/groups", 400, all_shards="yes"))["error"]
            assert "there is no shard other" in (await get_json(browser, "/groups", 404, shard="other"))["error"]
            assert "unknown query size" in (await get_json(browser, "/groups", 400, size="1", **HERE))["error"]
            assert "limit" in (await get_json(browser, "/events", 400, limit="-1", **HERE))["error"]
            assert (await get_json(browser, "/nowhere", 404))["error"].startswith("there is no such address")
            assert (await get_json(browser, "/group/scale", 405, **HERE))["error"] == "expected POST, found GET"
            wrong: tuple[Any, ...] = (
                None,
                [],
                {"group": "web"},
                {"group": "web", "size": -1},
                {"group": "web", "size": True},
                {"group": "web", "size": 1.5},
                {"group": "web", "size": "3"},
                {"group": "web", "size": 2**31},
                {"group": "../web", "size": 3},
                {"group": 3, "size": 3},
                {"group": "web", "size": 3, "more": 1},
            )
            for body in wrong:
                assert (
                    "expected"
                    in (await post(browser, "/group/scale", body, 400 if body is not None else 415, **HERE))["error"]
                )
            assert (
                "there is no group wob"
                in (await post(browser, "/group/scale", {"group": "wob", "size": 3}, 404, **HERE))["error"]
            )
            async with browser.post("/group/scale", params=HERE, data=b"{" * 70_000, headers=JSON) as answer:
                assert answer.status == 413
            async with browser.post("/group/scale", params=HERE, data=b"[" * 60_000, headers=JSON) as answer:
                assert answer.status == 400
            assert (await get_json(browser, "/groups", **HERE))["groups"][0]["size"] == 2
            odd = {"Content-Type": "application/json; charset=nonsense"}
            async with browser.post("/group/scale", params=HERE, data=b"\xff", headers=odd) as answer:
                assert (answer.status, await answer.json()) == (
                    400,
                    {"error": "expected a JSON object with group, size"},
                )
            async with browser.get("/groups", params=[("shard", SHARD), ("shard", "dead")]) as answer:
                assert (answer.status, await answer.json()) == (
                    400,
                    {"error": "expected shard once, found it several times"},
                )


async def test_heads_are_what_a_get_would_say_without_its_body(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        async with served(world) as browser:
            for path, query, code in (
                ("/health", {}, 200),
                ("/", {}, 200),
                ("/groups", HERE, 200),
                ("/groups", {}, 400),
                ("/events", HERE, 200),
                ("/group/scale", HERE, 405),
            ):
                stream = {"Accept": "text/event-stream, */*"}  # a head has no end to wait for
                async with asyncio.timeout(SECONDS), browser.head(path, params=query, headers=stream) as answer:
                    assert (answer.status, await answer.read()) == (code, b"")


async def test_a_bug_is_reported_in_json_and_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        monkeypatch.setattr(unversioned.groups, "list_groups", None)
        async with served(world) as browser:
            assert "bug" in (await get_json(browser, "/groups", 500, **HERE))["error"]
            assert "GET /groups failed: unexpected TypeError" in capsys.readouterr().err


JSON = {"Content-Type": "application/json"}


# ---- events as they happen


async def test_events_are_streamed_and_a_browser_that_returns_misses_none(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC), agents=False) as world:
        await world.start()
        stream = {"Accept": "text/event-stream"}
        async with served(world) as browser, asyncio.timeout(SECONDS):
            async with browser.get("/events", params={**HERE, "limit": "0"}, headers=stream) as answer:
                assert answer.content_type == "text/event-stream"
                coming = lines(answer)
                begun = await anext(coming)
                assert list(begun) == ["id"]
                assert begun["id"].startswith(f"{SHARD}=")
                await post(browser, "/group/scale", {"group": "web", "size": 3}, **HERE)
                first = await anext(coming)
                while first["data"]["reason"] != "config":
                    first = await anext(coming)
                assert (first["data"]["group"], first["data"]["shard"]) == ("web", SHARD)
                assert first["id"].startswith(f"{SHARD}=")
            await post(browser, "/group/scale", {"group": "web", "size": 4}, **HERE)
            again = {**stream, "Last-Event-ID": first["id"]}
            async with browser.get("/events", params=HERE, headers=again) as answer:
                coming = lines(answer)
                assert (await anext(coming)) == {"id": first["id"]}
                seen = [await anext(coming)]
                while seen[-1]["data"]["reason"] != "config":
                    seen.append(await anext(coming))
                assert "3 → 4" in seen[-1]["data"]["message"]
                assert all(each["data"] != first["data"] for each in seen)


async def test_streams_are_bounded_and_an_unresponsive_shard_is_reported(tmp_path: Path) -> None:
    extras = routes.Extras(streams=stream.Limits(streams=1, heartbeat_seconds=0.02))
    async with World(tmp_path, config(groups=STATIC), agents=False) as world:
        await world.start()
        events = {"Accept": "text/event-stream"}
        async with served(world, dead=True, extras=extras) as browser, asyncio.timeout(SECONDS):
            async with browser.get("/events", params={**ALL, "limit": "0"}, headers=events) as answer:
                coming = lines(answer)
                assert list(await anext(coming)) == ["id"]
                reply = await anext(coming)
                assert (reply["event"], reply["data"]["shard"]) == ("shard", "dead")
                async with browser.get("/events", params=ALL, headers=events) as second:
                    assert second.status == 503
            while True:  # the first one's place is free once its end is noticed
                async with browser.get("/events", params=ALL, headers=events) as third:
                    if third.status == 200:
                        break


async def test_a_quiet_stream_gets_heartbeats_although_the_shard_reports_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nstance.admin.shard.shard_feed.CONTROL_PLANE_SECONDS", 0.01)
    extras = routes.Extras(streams=stream.Limits(heartbeat_seconds=0.2))
    async with World(tmp_path, config(groups=STATIC), agents=False) as world:
        await world.start()
        events = {"Accept": "text/event-stream"}
        quiet = {**HERE, "limit": "0"}
        async with (
            served(world, extras=extras) as browser,
            asyncio.timeout(SECONDS),
            browser.get("/events", params=quiet, headers=events) as answer,
        ):
            while await answer.content.readline() != b": still here\n":
                pass


# ---- the description


async def test_the_description_agrees_with_what_is_served(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start()
        async with served(world, dead=True) as browser:
            reply = await get_json(browser, "/openapi.json")
            assert reply["openapi"].startswith("3.1")
            described = {(method.upper(), path) for path, some in reply["paths"].items() for method in some}
            assert isinstance(browser.app, aiohttp.web.Application)
            assert described == {
                (route.method, route.resource.canonical)
                for route in browser.app.router.routes()
                if route.resource and route.method != "HEAD" and not route.resource.canonical.startswith(APART)
            }
            assert {path for path, some in reply["paths"].items() for each in some.values() if "security" in each} == {
                *access.PUBLIC_PATHS
            }
            ids = [each["operationId"] for some in reply["paths"].values() for each in some.values()]
            assert len(set(ids)) == len(ids)
            named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(reply)))
            assert named == reply["components"]["schemas"].keys()
            for path, some in reply["paths"].items():
                for method, operation in some.items():
                    if path in ("/group/rollback", "/group/resume-rollout"):
                        continue  # refused where there is nothing to steer
                    for query, code in ((HERE, "200"), (ALL, "207"), ({"shard": "dead"}, "503")):
                        asked = dict(query) if operation["parameters"] else {}
                        if path == "/group/history":
                            asked["group"] = "web"
                        body = {"group": "web", "size": 2} if "requestBody" in operation else None
                        async with browser.request(method, path, params=asked, json=body) as answer:
                            assert str(answer.status) == (code if asked else "200")
                            replies = operation["responses"]
                            content = replies.get(str(answer.status), replies["default"])["content"]
                            assert answer.content_type in content
                            if answer.content_type == "application/json":
                                check(await answer.json(), content["application/json"]["schema"])


# ---- doors


async def test_without_a_token_only_local_pages_are_served(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        async with served(world) as browser:
            for headers in (
                {"Host": "evil.example"},
                {"Host": "evil.example:8080"},
                {"Host": "127.0.0.1.evil.example"},
            ):
                async with browser.get("/groups", params=HERE, headers=headers) as answer:
                    assert answer.status == 403
            async with browser.get("/", headers={"Host": "evil.example"}) as answer:
                assert answer.status == 403
            for host in ("localhost", "localhost:8080", "[::1]:8080", "127.0.0.1"):
                async with browser.get("/groups", params=HERE, headers={"Host": host}) as answer:
                    assert answer.status == 200
            foreign = {"Origin": "https://evil.example"}
            async with browser.post("/config/refresh", params=HERE, headers=foreign) as answer:
                assert answer.status == 403
            own = {"Origin": f"http://{browser.host}:{browser.port}"}
            async with browser.post("/config/refresh", params=HERE, headers=own) as answer:
                assert answer.status == 200
            async with browser.get("/") as answer:
                assert "openapi.json" in await answer.text()
                assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "203.0.113.5"},
        {"x-forwarded-proto": "https"},
        {"Forwarded": "for=203.0.113.5"},
        {"Via": "1.1 proxy"},
        {"X-Real-IP": "203.0.113.5"},
    ],
    ids=lambda headers: next(iter(headers)),
)
async def test_a_request_that_a_proxy_forwards_is_not_that_of_a_local_user(
    headers: dict[str, str], tmp_path: Path
) -> None:
    """Whatever the Host that the proxy passes."""
    async with World(tmp_path, agents=False) as world:
        await world.start()
        async with served(world, guard=OPEN) as browser:
            for host in ("localhost", "127.0.0.1"):
                for path in ("/groups", "/v1/groups", "/v1/session", "/"):
                    async with browser.get(path, params=HERE, headers={"Host": host, **headers}) as answer:
                        assert answer.status == 403, path
                        assert "came through a proxy (header" in await answer.text()
                async with browser.post("/config/refresh", params=HERE, headers={"Host": host, **headers}) as answer:
                    assert answer.status == 403


async def test_behind_a_proxy_a_token_is_what_counts(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        async with served(world, guard=GUARDED) as browser:
            shown = {"X-Forwarded-For": "203.0.113.5", "Host": "admin.example", "Authorization": f"Bearer {TOKEN}"}
            async with browser.get("/groups", params=HERE, headers=shown) as answer:
                assert answer.status == 200
            for proto, is_secure in (("https", True), ("http", False)):
                shown = {"X-Forwarded-Proto": proto}
                async with browser.post("/v1/session", json={"token": TOKEN}, headers=shown) as answer:
                    assert ("Secure" in answer.headers["Set-Cookie"]) is is_secure


async def test_answers_do_not_tell_versions(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        async with served(world) as browser:
            for request, status in ((b"GET /health HTTP/1.1\r\nHost: localhost", b" 200 "), (b"nonsense", b" 400 ")):
                reader, writer = await asyncio.open_connection(browser.host, browser.port)
                writer.write(request + b"\r\nConnection: close\r\n\r\n")
                answer = await reader.read()
                writer.close()
                assert status in answer.splitlines()[0]
                assert b"\r\nServer: nstance\r\n" in answer


async def test_the_version_of_http_that_nginx_speaks_by_default_is_a_proxys(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        async with served(world) as browser:
            reader, writer = await asyncio.open_connection(browser.host, browser.port)
            writer.write(b"GET /v1/groups HTTP/1.0\r\nHost: 127.0.0.1:8080\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
        assert b" 403 " in answer.splitlines()[0]
        assert b"came through a proxy (HTTP/1.0)" in answer


async def test_with_a_token_nobody_else_is_served(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        guard = Access(token=TOKEN, tls_cert=None, tls_key=None, client_ca=None)
        assert TOKEN not in repr(guard)
        async with served(world, guard=guard) as browser:
            for shown in (None, "", "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \u00e4", TOKEN):
                headers = {"Authorization": shown} if shown is not None else {}
                async with browser.get("/groups", params=HERE, headers=headers) as answer:
                    assert answer.status == 401, shown
                    assert answer.headers["WWW-Authenticate"] == "Bearer"
            for shown in (f"Bearer {TOKEN}", f"bearer {TOKEN}"):
                async with browser.get("/groups", params=HERE, headers={"Authorization": shown}) as answer:
                    assert answer.status == 200
            for path in access.PUBLIC_PATHS:
                async with browser.get(path, headers={"Host": "any.example"}) as answer:
                    assert answer.status == 200


# ---- the program


def certificates(directory: Path) -> tuple[Path, Path]:
    """Of localhost, signed by itself, with a key that browsers take."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, private = directory / "web.crt", directory / "web.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return certificate, private


@pytest.mark.parametrize("mtls", [False, True], ids=["token", "mtls"])
async def test_the_program_on_a_public_address(tmp_path: Path, free_port: int, mtls: bool) -> None:
    certificate, private = certificates(tmp_path)
    async with World(tmp_path, config(groups=STATIC), agents=False) as world:
        await world.start()
        admin = await shell(world)
        words = ["--bind", f"0.0.0.0:{free_port}", "--tls-cert", str(certificate), "--tls-key", str(private)]
        if mtls:
            words += ["--client-ca", str(certificate)]
        else:
            (tmp_path / "token").write_text(f"{TOKEN}\n")
            words += ["--token-file", str(tmp_path / "token")]
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nstance.admin", "serve", *words),
            env={**os.environ, **admin.environment},
            stderr=asyncio.subprocess.PIPE,
        )
        assert program.stderr is not None
        try:
            async with asyncio.timeout(SECONDS):
                assert b"serving zone-a at https://0.0.0.0:" in await program.stderr.readline()
            context = ssl.create_default_context(cafile=str(certificate))
            url = f"https://localhost:{free_port}/groups"
            async with aiohttp.ClientSession() as session:
                if mtls:
                    with pytest.raises(aiohttp.ClientError):
                        await session.get(url, params=HERE, ssl=context)
                    context.load_cert_chain(certificate, private)
                else:
                    async with session.get(url, params=HERE, ssl=context) as answer:
                        assert answer.status == 401
                headers = {} if mtls else {"Authorization": f"Bearer {TOKEN}"}
                async with session.get(url, params=HERE, headers=headers, ssl=context) as answer:
                    assert (await answer.json())["groups"][0]["group"] == "web"
                async with session.get(url, headers={"X-Long": "x" * 20_000}, ssl=context) as answer:
                    assert answer.status == 400
                stream = {**headers, "Accept": "text/event-stream"}
                address = url.replace("groups", "events")
                async with session.get(address, params=HERE, headers=stream, ssl=context) as answer:
                    assert answer.status == 200
                    program.send_signal(signal.SIGTERM)  # an open stream does not hold it up
                    async with asyncio.timeout(SECONDS):
                        assert await program.wait() == 0
        finally:
            if program.returncode is None:
                program.kill()
            _, reply = await program.communicate()
        assert reply == b""  # strangers do not fill the log


async def test_it_refuses_to_be_open_to_everybody(tmp_path: Path) -> None:
    certificate, private = certificates(tmp_path)
    tls = ("--tls-cert", str(certificate), "--tls-key", str(private))
    async with World(tmp_path, agents=False) as world:
        await world.start()
        admin = await shell(world)
        message = await admin.refused("serve", "--bind", ":8080", code=2)
        assert ":8080 can be reached from other machines" in message
        for need in ("--tls-cert and --tls-key", "--token-file (or NSTANCE_ADMIN_TOKEN)", "127.0.0.1:8080"):
            assert need in message
        assert "requires one of --tokens-file" in await admin.refused("serve", *tls, code=2)
        message = await admin.refused("serve", "--bind", ":8080", code=2, NSTANCE_ADMIN_TOKEN=TOKEN)
        assert "requires --tls-cert" in message
        assert "expected a token of" in await admin.refused("serve", *tls, code=2, NSTANCE_ADMIN_TOKEN="short")
        assert "expected both --tls-cert and --tls-key" in await admin.refused("serve", *tls[:2], code=2)
        assert "--client-ca needs" in await admin.refused("serve", "--client-ca", str(certificate), code=2)
        wrong = ("--tls-cert", str(private), "--tls-key", str(private))
        assert "cannot be used" in await admin.refused("serve", *wrong, NSTANCE_ADMIN_TOKEN=TOKEN)
        absent = ("--tls-cert", str(tmp_path / "no.crt"), "--tls-key", str(private))
        assert "there is no file" in await admin.refused("serve", *absent, NSTANCE_ADMIN_TOKEN=TOKEN)
        await admin.refused("serve", "--bind", "nonsense", code=2)
        taken = f"127.0.0.1:{operator_addresses(world).rpartition(':')[2]}"
        assert f"cannot listen on {taken}" in await admin.refused("serve", "--bind", taken)


async def test_without_flags_it_serves_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        admin = await shell(world)
        bound: list[str] = []

        async def serve(reach: object, bind: object, guard: object, options: object) -> None:
            bound.append(str(bind))

        monkeypatch.setattr(server, "serve", serve)
        await admin.ok("serve")
        certificate, private = certificates(tmp_path)
        await admin.ok("serve", "--tls-cert", str(certificate), "--tls-key", str(private), NSTANCE_ADMIN_TOKEN=TOKEN)
        assert bound == ["127.0.0.1:8080", ":8080"]
