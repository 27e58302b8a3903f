"""A fast EC2 for measurements, in a process of its own: it answers the calls of the AWS provider and notes when each came.

    python -m bench.ec2_endpoint

It prints its URL and ends with its standard input. It is not strict: `nstance.dev.aws` is. Times are of CLOCK_MONOTONIC.
"""

import asyncio
import base64
import hashlib
import json
import sys
import time
import urllib.parse
from typing import Any

import uvloop
from aiohttp import web

ITEM = (
    "<item><instanceId>{ec2}</instanceId><instanceState><code>16</code><name>{state}</name></instanceState>"
    "<privateIpAddress>10.0.0.1</privateIpAddress><privateDnsName>{id}</privateDnsName><tagSet>{tags}</tagSet></item>"
)


def provider_id(id: str) -> str:
    return f"i-{hashlib.sha256(id.encode()).hexdigest()[:17]}"


class Endpoint:
    def __init__(self) -> None:
        self.tags: dict[str, dict[str, str]] = {}  # by EC2 ID
        self.launches: list[tuple[float, str, str]] = []
        self.refused: list[tuple[float, str]] = []
        self.exhausted = ""  # an instance type without capacity
        self.assigned: list[float] = []
        self.seconds = 0.0
        self.tokens, self.refill, self.counted_at = 0.0, 0.0, time.monotonic()

    async def serve(self, request: web.Request) -> web.Response:
        at, body = time.monotonic(), await request.read()
        if request.path.startswith("/latest/"):
            return web.Response(text=_metadata(request.path))
        if request.path != "/":
            return web.json_response(self._control(request.path, json.loads(body or b"{}")))
        params = dict(urllib.parse.parse_qsl(body.decode()))
        action = params["Action"]
        if action == "RunInstances":
            self.launches.append((at, _tag(params, "nstance:instance-id"), _tag(params, "nstance:group")))
        if self.seconds:
            await asyncio.sleep(self.seconds)
        text, status = getattr(self, f"_{action}")(params)
        root = f"{action}Response" if status == 200 else "Response"
        return web.Response(text=f'<?xml version="1.0"?><{root} xmlns="http://ec2">{text}</{root}>', status=status)

    def _control(self, path: str, body: dict[str, Any]) -> object:
        match path:
            case "/adopt":
                self.tags.update({provider_id(each["nstance:instance-id"]): each for each in body["vms"]})
            case "/limits":
                self.seconds, self.tokens, self.refill = body["seconds"], body["burst"], body["refill"]
            case "/exhaust":
                self.exhausted = body["type"]
            case "/launches":
                return self.launches
            case "/refused":
                return self.refused
            case "/assigned":
                return self.assigned
            case _:
                pass
        return {}

    def _RunInstances(self, params: dict[str, str]) -> tuple[str, int]:
        now = time.monotonic()
        if self.exhausted and params.get("InstanceType") == self.exhausted:
            self.refused.append((now, _tag(params, "nstance:instance-id")))
            return "<Errors><Error><Code>InsufficientInstanceCapacity</Code><Message>x</Message></Error></Errors>", 500
        if self.refill:
            self.tokens, self.counted_at = self.tokens + (now - self.counted_at) * self.refill, now
            if self.tokens < 1:
                return "<Errors><Error><Code>RequestLimitExceeded</Code><Message>x</Message></Error></Errors>", 503
            self.tokens -= 1
        tags = {
            params[name]: params[name.removesuffix("Key") + "Value"]
            for name in params
            if name.startswith("TagSpecification.1.Tag.") and name.endswith(".Key")
        }
        ec2 = provider_id(tags["nstance:instance-id"])
        self.tags[ec2] = tags
        return f"<instancesSet>{self._item(ec2, 'pending')}</instancesSet>", 200

    def _DescribeInstances(self, params: dict[str, str]) -> tuple[str, int]:
        wanted = params.get("InstanceId.1")
        shown = [wanted] if wanted in self.tags else [] if wanted else list(self.tags)
        if params.get("Filter.1.Name") == "tag:nstance:instance-id":
            shown = [each for each in [provider_id(params["Filter.1.Value.1"])] if each in self.tags]
        items = "".join(self._item(each, "running") for each in shown if each is not None)
        return f"<reservationSet><item><instancesSet>{items}</instancesSet></item></reservationSet>", 200

    def _TerminateInstances(self, params: dict[str, str]) -> tuple[str, int]:
        ec2 = params["InstanceId.1"]
        self.tags.pop(ec2, None)
        state = "<currentState><code>48</code><name>terminated</name></currentState>"
        return f"<instancesSet><item><instanceId>{ec2}</instanceId>{state}</item></instancesSet>", 200

    def _GetConsoleOutput(self, params: dict[str, str]) -> tuple[str, int]:
        return f"<output>{base64.b64encode(b'up').decode()}</output>", 200

    def _AssignPrivateIpAddresses(self, params: dict[str, str]) -> tuple[str, int]:
        self.assigned.append(time.monotonic())
        return "<return>true</return>", 200

    _UnassignPrivateIpAddresses = _GetConsoleOutput

    def _DescribeNetworkInterfaces(self, params: dict[str, str]) -> tuple[str, int]:
        return "<networkInterfaceSet><item><status>in-use</status></item></networkInterfaceSet>", 200

    def _item(self, ec2: str, state: str) -> str:
        tags = self.tags[ec2]
        shown = "".join(f"<item><key>{key}</key><value>{value}</value></item>" for key, value in tags.items())
        return ITEM.format(ec2=ec2, state=state, id=tags["nstance:instance-id"], tags=shown)


def _tag(params: dict[str, str], key: str) -> str:
    name = next(name for name, value in params.items() if value == key and name.startswith("TagSpecification.1."))
    return params[name.removesuffix("Key") + "Value"]


def _metadata(path: str) -> str:
    return {"instance-id": "i-0123456789abcdef0", "interface-id": "eni-1"}.get(path.rpartition("/")[2], "token")


async def main() -> None:
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{path:.*}", Endpoint().serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(main())
