"""`make dev-aws`: a cloud in a box. The stand-in for AWS, a hypervisor that boots its instances, and a server beside them.

`--once` waits for all instances, has one reclaimed, waits for its replacement, and exits: a demonstration and a test.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import platform
import shlex
import shutil
import sys
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aiohttp import web

from nstance import clock as clocks
from nstance.config import addresses
from nstance.config.errors import ConfigError
from nstance.dev import child, dev_config, loopback, signals
from nstance.dev.aws import local_config, xml
from nstance.dev.aws.hypervisor import Hypervisor
from nstance.dev.aws.moto import MissingError, Moto, Refusal, opened, signed
from nstance.dev.aws.rules import Rules, parse_capacity
from nstance.dev.aws.spot import SpotService
from nstance.dev.aws.stand_in import StandIn
from nstance.dev.errors import DevError
from nstance.dev.run import DEV_ENCRYPTION_KEY
from nstance.model.ids import ShardId
from nstance.server.config import configuration
from nstance.server.workload import rendering
from nstance.tasks import background
from nstance.telemetry import logs

SHARD = ShardId("dev")
BUCKET = "nstance-dev"
REGION = "us-east-1"
STEP_SECONDS = 300.0  # for each step of --once
POLL_SECONDS = 0.2
HISTORY = "server.leader.history: "  # begins the decisions in the server's log
USERDATA_PATH = "/userdata/"
_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}

EXAMPLES = """examples:
  python -m nstance.dev.aws.box --config examples/config-aws.jsonc
  python -m nstance.dev.aws.box --spot storm                 # a third of the spot instances is reclaimed every 40 s
  python -m nstance.dev.aws.box --capacity m7g.large:0       # no capacity for that type
"""


class Box:
    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.clock = clocks.SystemClock()
        self._folder = folder
        self._options = options
        self._environment: dict[str, str] = {}  # of programs that use the stand-in and its bucket
        self._port = options.port or dev_config.find_free_port(clocks.SystemRng(), (0,))

    async def run(self) -> None:
        """Until a signal, or with --once until the test is complete. Raises DevError."""
        bundle = find_bundle()
        if shutil.which("bwrap") is None:
            raise DevError("expected bwrap, which runs the instances; install it (apt-get install bubblewrap)")
        shutil.rmtree(self._folder, ignore_errors=True)  # moto forgets everything as well
        self._folder.mkdir(parents=True)
        async with contextlib.AsyncExitStack() as stack:
            moto = await stack.enter_async_context(opened(self._folder, region=REGION))
            stand_in = StandIn(moto, self.clock, Rules(capacity=dict(self._options.capacity)))
            await stand_in.start()
            stack.push_async_callback(stand_in.close)
            files = await stack.enter_async_context(serve_files({local_config.AGENT_PATH: bundle, **_example_files()}))
            await self._upload_config(moto, stand_in, files)
            environment = {"AWS_ENDPOINT_URL": stand_in.url, "AWS_REGION": REGION}
            hypervisor = Hypervisor(stand_in, self._folder / "instances", clock=self.clock, environment=environment)
            spot = SpotService(stand_in, clock=self.clock, rng=clocks.SystemRng())
            self._environment = {
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_REGION": REGION,
                "AWS_ENDPOINT_URL": stand_in.url,
                "AWS_EC2_METADATA_DISABLED": "true",
                "NSTANCE_ENCRYPTION_KEY": DEV_ENCRYPTION_KEY,
            }
            server = self._server()
            stack.push_async_callback(server.stop)
            await server.start()
            self._say(f"AWS endpoint: {stand_in.url}; server's log: {server.log}")
            await self._work(server, hypervisor, spot)

    async def _work(self, server: child.Child, hypervisor: Hypervisor, spot: SpotService) -> None:
        stopped = signals.stop_event()
        work = [hypervisor.run(), self._follow(server), *([spot.storm()] if self._options.spot == "storm" else [])]
        tasks = [asyncio.ensure_future(each) for each in (*work, stopped.wait())]
        script = asyncio.ensure_future(self._demonstrate(hypervisor, spot))
        decisive = [*tasks, script] if self._options.once else tasks
        try:
            await asyncio.wait(decisive, return_when=asyncio.FIRST_COMPLETED)
            for task in (script, *tasks):
                if task.done():
                    task.result()
        finally:
            await background.end([*tasks, script])

    async def _demonstrate(self, hypervisor: Hypervisor, spot: SpotService) -> None:
        size = self._options.size
        await self._until(f"{size} ready instances", lambda: loopback.ready_instances(self._port) >= size)
        self._say(f"{size} instances booted their userdata, registered and have their files")
        if not self._options.once:
            await self._register_operator()
            self._say(f"look at them: . {self._folder / 'admin.env'}; .venv/bin/nstance-admin status")
            self._say(f"consoles and disks: {self._folder / 'instances'}; Ctrl+C stops everything")
            return
        chosen = (spot.candidates() or list(hypervisor.running))[0]
        self._say(f"reclaiming {chosen}")
        await spot.reclaim([chosen])
        gone = f"a replacement of {chosen}"
        await self._until(
            gone, lambda: chosen not in hypervisor.running and loopback.ready_instances(self._port) >= size
        )
        self._say("it was replaced")

    async def _until(self, what: str, holds: Callable[[], bool]) -> None:
        end = self.clock.monotonic() + STEP_SECONDS
        while not await asyncio.to_thread(holds):
            if self.clock.monotonic() > end:
                raise DevError(f"expected {what} within {STEP_SECONDS:g} s; see the files in {self._folder}")
            await self.clock.sleep(POLL_SECONDS)

    async def _upload_config(self, moto: Moto, stand_in: StandIn, files: str) -> None:
        cloud = local_config.LocalCloud(
            region=REGION,
            subnets=await _ids(moto, "DescribeSubnets", "subnetSet", "subnetId"),
            security_group=(await _ids(moto, "DescribeSecurityGroups", "securityGroupInfo", "groupId"))[0],
            files_url=files,
            first_port=self._port,
        )
        for name in _instance_profiles(self._options.config):
            await _call(moto, "iam", {"Action": "CreateInstanceProfile", "InstanceProfileName": name})
        body = _adapt(self._options.config, cloud)
        (self._folder / "config.jsonc").write_bytes(body)
        await _s3_put(moto, f"/{BUCKET}", b"")
        await _s3_put(moto, f"/{BUCKET}/shard/{SHARD}/config.jsonc", body)

    def _server(self) -> child.Child:
        command = [child.program_path("nstance-server"), "--id", "server", "--shard", SHARD, "--bucket", BUCKET]
        command += ["--cachedir", str(self._folder / "cache"), "--advertise-host", "127.0.0.1"]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return child.Child("server", command, {**inherited, **self._environment}, temp=self._folder, clock=self.clock)

    async def _follow(self, server: child.Child) -> None:
        """Shows the decisions in the server's log, until cancelled. Raises DevError if the server ends."""
        while server.exit_code is None:
            for line in server.new_lines():
                if HISTORY in line:
                    self._say(line.partition(HISTORY)[2].strip())
            await self.clock.sleep(POLL_SECONDS)
        raise DevError(f"the server ended; see its log {server.log}")

    async def _register_operator(self) -> None:
        """An identity for nstance-admin, and its environment in a file for a second terminal."""
        operator_port = self._port + list(addresses.Service).index(addresses.Service.OPERATOR)
        variables = {
            **self._environment,
            "NSTANCE_ADMIN_SHARD": SHARD,
            "NSTANCE_ADMIN_STORAGE_BUCKET": BUCKET,
            "NSTANCE_ADMIN_SERVERS": f"{SHARD}=127.0.0.1:{operator_port}",
            "NSTANCE_ADMIN_IDENTITY_DIR": str(self._folder / "identity"),
        }
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        (self._folder / "admin.env").write_text("".join(lines))
        await child.run_admin(
            *("cluster", "register-operator", "--output-dir", variables["NSTANCE_ADMIN_IDENTITY_DIR"]),
            environment={**os.environ, **variables},
        )

    def _say(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def _example_files() -> dict[str, Path]:
    """By the URL path at which configurations name them."""
    folder = Path("examples/userdata")
    scripts = {f"{USERDATA_PATH}{path.name}": path for path in folder.glob("*.sh")}
    return {**scripts, local_config.NETSY_PATH: folder / "netsy-stand-in"}


def _instance_profiles(path: Path) -> list[str]:
    return local_config.instance_profiles(path.read_text(), source=str(path))


def _adapt(path: Path, cloud: local_config.LocalCloud) -> bytes:
    body = local_config.adapt(path.read_text(), cloud, source=str(path))
    configuration.parse(body, shard=SHARD, source=str(path))
    return body


def find_bundle() -> Path:
    """The agent's bundle for this machine. Raises DevError."""
    arch = _ARCH.get(platform.machine())
    path = Path("dist") / f"nstance-agent-linux-{arch}.tar.gz"
    if not path.is_file():
        raise DevError(f"expected the agent's bundle at {path}; build it with: make agent-bundle")
    return path.absolute()


def serve_files(files: Mapping[str, Path]) -> contextlib.AbstractAsyncContextManager[str]:
    """Files by URL path, on this machine. Userdata gets the agent's script before it, as guides tell their readers to do."""

    async def send(request: web.Request) -> web.StreamResponse:
        path = files.get(request.path)
        if path is None:
            return web.Response(status=404)
        if request.path.startswith(USERDATA_PATH):
            return web.Response(text=rendering.AGENT_SCRIPT + path.read_text())
        return web.FileResponse(path)

    return loopback.answering(send)


async def _ids(moto: Moto, action: str, list_name: str, field: str) -> list[str]:
    root = xml.parse(await _call(moto, "ec2", {"Action": action, "Version": "2016-11-15"}))
    return [xml.text(each, field) for each in xml.all_entries(root, list_name)]


async def _call(moto: Moto, service: str, params: Mapping[str, str]) -> bytes:
    body = urllib.parse.urlencode(params).encode()
    return await moto.call(body, signed(service, REGION))


async def _s3_put(moto: Moto, path: str, body: bytes) -> None:
    headers = {**signed("s3", REGION), "content-type": "application/octet-stream"}  # a form would be taken apart
    answer, status, _ = await moto.forward("PUT", path, headers, body)
    if status >= 300:
        raise DevError(f"failed to write {path} in the stand-in: {answer[:200].decode(errors='replace')}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nstance.dev.aws.box",
        description="A cloud in a box: a stand-in for AWS whose instances boot their userdata in sandboxes, and a server.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", type=Path, default=Path("examples/config-aws.jsonc"), metavar="FILE")
    add("--dir", type=Path, default=Path("temp/dev-aws"), help="folder for all files; emptied first (temp/dev-aws)")
    add("--port", type=int, default=0, help="the first of the server's five ports (default: free ones)")
    add("--size", type=int, default=3, help="ready instances to wait for (3)")
    add("--spot", choices=("calm", "storm"), default="calm", help="storm: spot instances are reclaimed in waves")
    add("--capacity", type=parse_capacity, action="append", default=[], metavar="TYPE:COUNT", help="repeatable")
    add("--once", action="store_true", help="wait for the instances, reclaim one, wait for its replacement, and exit")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    logs.configure(json=False, debug=False, program="dev-aws")
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
    try:
        asyncio.run(Box(options.dir.absolute(), options).run())
    except (
        DevError,
        MissingError,
        Refusal,
        ConfigError,
        configuration.NoConfigurationError,
        OSError,
        RuntimeError,
    ) as problem:
        sys.exit(f"dev-aws: {problem}")


if __name__ == "__main__":
    main()
