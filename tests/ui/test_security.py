"""What others control must not act: texts, other sites, frames."""

import json
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from component.http_world import OPEN, get_json, served
from component.whole_server import SHARD, World, config, states
from nstance.model.decision import ReasonCode
from nstance.model.ids import GroupKey, GroupName, InstanceId, TenantId
from support.eventually import eventually
from ui.browsing import tab

GROUPS = {"default": {"web": {"template": "web", "size": 2, "drain_timeout": "0"}}}
HERE = {"shard": str(SHARD)}
CORPUS = (
    "<script>window.hit=1</script>",
    "<img src=x onerror=window.hit=1>",
    "<svg/onload=window.hit=1>",
    "\"><iframe srcdoc='<script>parent.hit=1</script>'>",
    "javascript:window.hit=1",
    "</title></style></textarea><script>window.hit=1</script>",
    "${window.hit=1}{{window.hit=1}}",
    "' onmouseover='window.hit=1",
    '{"__proto__":{"hit":1},"constructor":null}',
    "<a href=javascript:window.hit=1>click</a>",
    "\u202e\u2066evil",
)


async def test_texts_of_others_are_shown_and_never_run(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        id = InstanceId(next(iter(await eventually(lambda: states(world, "web")))))
        log, key = world.leader.shard.event_log, GroupKey(TenantId("default"), GroupName("web"))
        for text in CORPUS:
            log.record(key, ReasonCode.SECURITY, text, id)
        log.record(key, ReasonCode.UNREGISTERED, "last console output:\n" + "\n".join(CORPUS), id)
        async with served(world, guard=OPEN) as browser, tab(chromium, browser) as page:
            vars = {f"v{number}": text for number, text in enumerate(CORPUS) if text.isprintable()}
            body = {"vars": vars, "instance_type": CORPUS[1]}
            async with browser.patch("/v1/groups/web", params=HERE, json=body) as answer:
                assert answer.status == 200, await answer.text()
            for where in ("fleet", f"group/{SHARD}/web", f"instance/{SHARD}/{id}", "events?reason=security"):
                await page.open(where)
                if where != "fleet":
                    await page.see(CORPUS[0])
                await page.page.mouse.move(400, 400)
            await page.open(f"instance/{SHARD}/{id}")
            output = page.page.locator("pre.console")
            await output.wait_for()
            assert CORPUS[0] in await output.inner_text()
            for name in CORPUS:
                await page.page.goto(f"{page.base}/#/group/{SHARD}/{name.replace('/', '%2F')}")
                await page.see("There is no group")
            assert await page.page.evaluate("() => [window.hit, ({}).hit]") == [None, None]
            assert (
                await page.page.evaluate("() => document.querySelectorAll('main script, main iframe, main svg').length")
                == 0
            )


VIOLATED = """() => new Promise((done) => {
  addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective), { once: true });
  const script = document.createElement("script");
  script.textContent = "1";
  document.body.append(script);
})"""


async def test_the_policy_forbids_inline_scripts_and_frames(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        async with served(world, guard=OPEN) as browser:
            async with tab(chromium, browser, allowed=["Content Security Policy", "violates", "404"]) as page:
                await page.open()
                await page.page.evaluate("""() => {
                  const script = document.createElement("script");
                  script.textContent = "window.hit = 1";
                  document.body.append(script);
                  const image = document.createElement("div");
                  image.innerHTML = "<img src=x onerror='window.hit=1'>";
                  document.body.append(image);
                }""")
                assert (await page.page.evaluate(VIOLATED)).startswith("script-src")
                assert await page.page.evaluate("() => window.hit") is None
            for path in ("/", "/dashboard/app.js", "/v1/groups"):
                async with browser.get(path) as answer:
                    policy = answer.headers["Content-Security-Policy"]
                    assert "frame-ancestors 'none'" in policy
                    assert "default-src 'none'" in policy
                    assert "unsafe" not in policy
                    assert answer.headers["X-Frame-Options"] == "DENY"
                    assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert "script-src 'self'" in (await browser.get("/")).headers["Content-Security-Policy"]


async def test_another_site_can_neither_change_nor_frame(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        async with served(world, guard=OPEN) as browser:
            target = str(browser.make_url("/")).rstrip("/")
            scale = f"{target}/v1/groups/web/scale?shard={SHARD}"
            page_of_evil = f"""<!doctype html><iframe src="{target}/"></iframe>
              <form method="post" enctype="text/plain" action="{scale}"><input name='{{"size":9,"x":"' value='"}}'></form>"""

            async def evil(request: web.Request) -> web.Response:
                return web.Response(text=page_of_evil, content_type="text/html")

            app = web.Application()
            app.router.add_get("/", evil)
            async with TestServer(app, host="127.0.0.1") as site:
                context = await chromium.new_context()
                page = await context.new_page()
                await page.goto(f"{target}/")  # the person has a session
                await page.wait_for_selector(".tile")
                await page.goto(str(site.make_url("/")))
                frame = page.frames[1]
                assert "Nstance" not in await frame.title()
                assert await frame.locator(".top").count() == 0
                attack = """async ([target, shard]) => {
                  const results = [];
                  const url = `${target}/v1/groups/web/scale?shard=${shard}`;
                  const json = { "Content-Type": "application/json" };
                  for (const options of [
                    { headers: json },
                    { mode: "no-cors" },
                    { headers: { ...json, "X-CSRF-Token": "0".repeat(64) } },
                  ]) {
                    try {
                      const body = JSON.stringify({ size: 9 });
                      const answer = await fetch(url, { method: "POST", body, credentials: "include", ...options });
                      results.push(answer.status);
                    } catch (error) {
                      results.push("blocked");
                    }
                  }
                  try {
                    results.push((await fetch(`${target}/v1/session`, { credentials: "include" })).status);
                  } catch (error) {
                    results.push("blocked");
                  }
                  return results;
                }"""
                assert await page.evaluate(attack, [target, str(SHARD)]) == ["blocked"] * 4
                async with page.expect_navigation():
                    await page.evaluate("() => document.forms[0].submit()")
                problem = json.loads(await page.inner_text("body"))
                assert problem["status"] == 403
                await context.close()
            assert (await get_json(browser, "/v1/groups/web"))["groups"][0]["size"] == 2
