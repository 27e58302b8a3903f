"""The Procfile's entry `operator`: waits for the shards and for dev-k8s, gives the operator what a person would give it by
hand, and runs it, started anew when its code changes. `make dev-operator` is the last step alone, against any Kubernetes.

What is given: the CA as a ConfigMap, a registration nonce as a Secret (made by nstance-admin, as long as the operator
has no certificate), and two files in `temp/operator/`: config.yaml and kubeconfig.
"""

import argparse
import asyncio
import base64
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import uvloop
import yaml

from nstance import clock as clocks
from nstance.dev import child, configs, leftovers
from nstance.dev import shard as shards
from nstance.dev.k8s.main import KUBECONFIG
from nstance.dev.screen import Screen
from nstance.dev.supervisor import Supervisor
from nstance.kube import errors, kinds, kubeconfig
from nstance.kube.http import HttpKube
from nstance.kube.port import Kube, Object
from nstance.operator.options import Environment

LOOK = 0.2
NONCE = 60.0  # seconds in which nstance-admin makes one
NAMESPACE = "default"
SERVERS = 2
CLUSTER = "example-cluster"  # of examples/config-tmux.jsonc
NAMES = Environment()
REGISTRATION, OPERATOR = 2, 3  # ports above the first one


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    temp: Path
    kubeconfig: Path
    config: Path
    port: int
    k8s_port: int
    endpoint: str
    standbys: bool
    probes: str
    only: bool  # run the operator with what is there

    def addresses(self, number: int, service: int) -> str:
        first = self.port + (number - 1) * shards.BETWEEN_SHARDS + service
        return ",".join(f"127.0.0.1:{first + offset}" for offset in (0, configs.STANDBY)[: 1 + self.standbys])


def plan(environment: Mapping[str, str], *, only: bool) -> Plan:
    temp = Path(environment.get("NSTANCE_DEV_TEMP") or "temp").absolute()
    own = temp / "operator" / "kubeconfig"
    return Plan(
        temp=temp,
        kubeconfig=Path(environment.get("KUBECONFIG") or own).absolute() if only else own,
        config=temp / "operator" / "config.yaml",
        port=int(environment.get("NSTANCE_DEV_PORT") or configs.PORT),
        k8s_port=int(environment.get("NSTANCE_DEV_K8S_PORT") or 6443),
        endpoint=f"http://127.0.0.1:{environment.get('NSTANCE_DEV_S3_PORT') or 8989}",
        standbys=environment.get("STANDBYS", "") not in ("", "0"),
        probes=environment.get("NSTANCE_DEV_PROBES") or ":8081",
        only=only,
    )


def configuration(wanted: Plan) -> str:
    told = {
        "cluster_id": CLUSTER,
        "tenant": "default",
        "shards": {
            f"dev-{number}": {
                "registration_addr": wanted.addresses(number, REGISTRATION),
                "operator_addr": wanted.addresses(number, OPERATOR),
            }
            for number in range(1, SERVERS + 1)
        },
    }
    return yaml.safe_dump(told, sort_keys=False)


async def prepare(wanted: Plan, screen: Screen, clock: clocks.Clock) -> None:
    wanted.config.parent.mkdir(parents=True, exist_ok=True)
    wanted.config.write_text(configuration(wanted))
    wanted.kubeconfig.write_text(KUBECONFIG.format(port=wanted.k8s_port))
    health = [f"http://127.0.0.1:{wanted.port + number * shards.BETWEEN_SHARDS}/health" for number in range(SERVERS)]
    for url in (*health, f"http://127.0.0.1:{wanted.k8s_port}/readyz"):
        await _answers(url, screen, clock)
    kube = HttpKube(kubeconfig.load([wanted.kubeconfig]), clock)
    try:
        certificate = (wanted.temp / "dev-s3/cluster/ca.crt").read_text()
        await _put(kube, kinds.CONFIG_MAP, NAMES.ca_configmap, {"ca.crt": certificate})
        await _put(kube, kinds.SERVICE_ACCOUNT, NAMES.service_account, {})
        if await _missing(kube, NAMES.cert_secret):
            nonce = base64.b64encode(await _nonce(wanted)).decode()
            await _put(kube, kinds.SECRET, NAMES.nonce_secret, {"nonce.jwt": nonce})
            screen.say("put the cluster's CA and a new registration nonce into dev-k8s")
    finally:
        await kube.close()


async def _answers(url: str, screen: Screen, clock: clocks.Clock) -> None:
    told = False
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
        while True:
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return
            except (aiohttp.ClientError, TimeoutError):
                pass
            if not told:
                screen.say(f"waiting for {url}")
                told = True
            await clock.sleep(LOOK)


async def _missing(kube: Kube, secret: str) -> bool:
    try:
        await kube.get(kinds.SECRET, secret, namespace=NAMESPACE)
        return False
    except errors.NotFoundError:
        return True


async def _put(kube: Kube, kind: kinds.Kind, name: str, data: Object) -> None:
    content = {"data": data} if data else {}
    try:
        await kube.create(kind, {"metadata": {"name": name}, **content}, namespace=NAMESPACE)
    except errors.AlreadyExistsError:
        await kube.patch(kind, name, content, namespace=NAMESPACE)


async def _nonce(wanted: Plan) -> bytes:
    """By the admin tool, as the walk-through does it by hand."""
    process = await asyncio.create_subprocess_exec(
        child.program("nstance-admin", sys.executable),
        *(
            "cluster",
            "nonce",
            "--cluster-id",
            CLUSTER,
            "--storage-bucket",
            "dev",
            "--key-provider",
            "env",
            "--output",
            "-",
        ),
        env=shards.dev_environment(os.environ, endpoint=wanted.endpoint),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(NONCE):
            token, said = await process.communicate()
    except TimeoutError:
        raise configs.Unusable(f"nstance-admin made no nonce within {NONCE:g} s: does dev-s3 answer?") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise configs.Unusable(f"nstance-admin made no nonce: {said.decode().strip()}")
    return token.strip()


def operator(wanted: Plan, clock: clocks.Clock) -> child.Child:
    program = [
        child.program("nstance-operator", sys.executable),
        *("--config", str(wanted.config), "--kubeconfig", str(wanted.kubeconfig), "--disable-webhooks"),
        *("--health-probe-bind-address", wanted.probes, "--zap-encoder", "console"),
    ]
    pids = wanted.temp / "pids"
    return child.Child(
        "operator",
        command=program,
        environment={
            "NSTANCE_NAMESPACE": NAMESPACE,
            **os.environ,
            "NSTANCE_K8S_JSON": "true",
            "NSTANCE_DEV": str(pids),
        },
        folder=Path.cwd(),
        log=wanted.temp / "logs" / "operator.log",
        pids=pids,
        clock=clock,
    )


async def run(wanted: Plan) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    clock = clocks.SystemClock()
    screen = Screen(sys.stdout, clock, timed=False)
    leftovers.claim(wanted.temp / "pids", "dev-operator")
    care = Supervisor([operator(wanted, clock)], screen, clock)
    try:
        if not wanted.only:
            preparing = asyncio.ensure_future(prepare(wanted, screen, clock))
            stopping = asyncio.ensure_future(ended.wait())
            await asyncio.wait({preparing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not preparing.done():
                preparing.cancel()
                await asyncio.wait({preparing})
                return
            preparing.result()
        await care.start()
        screen.say(f"the operator starts; try: kubectl --kubeconfig {wanted.kubeconfig} get machinepools,nodes")
        async with care.watching():
            while not ended.is_set():
                await care.look()
                await clock.sleep(LOOK)
    finally:
        await care.stop()
        leftovers.forget(wanted.temp / "pids", "dev-operator")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m nstance.dev.operator", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--only",
        action="store_true",
        help="run the operator with temp/operator/ as it is (KUBECONFIG: another cluster)",
    )
    wanted = plan(os.environ, only=parser.parse_args(argv).only)
    for path, how in (
        (wanted.config, "cluster_id, tenant and the shards' addresses"),
        (wanted.kubeconfig, "for kind: kind get kubeconfig --name nstance-dev > temp/operator/kubeconfig"),
    ):
        if wanted.only and not path.exists():
            sys.exit(f"dev: {path} is missing ({how}): see docs/kind.md")
    try:
        uvloop.run(run(wanted))
    except (leftovers.Busy, configs.Unusable, errors.KubeError, kubeconfig.KubeconfigError, OSError) as problem:
        sys.exit(f"dev: {problem}")


if __name__ == "__main__":
    main()
