"""The entry `operator` of the Procfile: waits for the shards and dev-k8s, prepares what the operator needs, and runs it.

It prepares the CA as a ConfigMap, a registration nonce as a Secret (from nstance-admin, if the operator has no certificate
yet), and `config.yaml` and `kubeconfig` in `temp/operator/`. The operator restarts when the code changes. `make dev-operator`
only runs it, against any Kubernetes.
"""

import argparse
import base64
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import uvloop
import yaml

from nstance import clock as clocks
from nstance.dev import child, dev_config, leftovers, signals
from nstance.dev import shard as shards
from nstance.dev.errors import DevError
from nstance.dev.k8s.main import KUBECONFIG
from nstance.dev.screen import Screen
from nstance.dev.supervisor import Supervisor
from nstance.kube import errors, kinds, kubeconfig
from nstance.kube.http import HttpKube
from nstance.kube.port import Kube, Object, find
from nstance.operator.options import Environment
from nstance.tasks import background

POLL_SECONDS = 0.2
NAMESPACE = "default"
SHARDS = 2
CLUSTER = "example-cluster"  # of examples/config-tmux.jsonc
NAMES = Environment()
REGISTRATION_PORT, OPERATOR_PORT = 2, 3  # above the first port of a server


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings in the environment."""

    temp: Path
    kubeconfig: Path
    config: Path
    port: int
    k8s_port: int
    endpoint: str
    standbys: bool
    probes: str
    only: bool  # run the operator without preparing anything

    def addresses(self, number: int, service: int) -> str:
        first = self.port + (number - 1) * shards.SHARD_PORT_OFFSET + service
        return ",".join(
            f"127.0.0.1:{first + offset}" for offset in (0, dev_config.STANDBY_PORT_OFFSET)[: 1 + self.standbys]
        )


def read_options(environment: Mapping[str, str], *, only: bool) -> Options:
    temp = Path(environment.get("NSTANCE_DEV_TEMP") or "temp").absolute()
    own = temp / "operator" / "kubeconfig"
    return Options(
        temp=temp,
        kubeconfig=Path(environment.get("KUBECONFIG") or own).absolute() if only else own,
        config=temp / "operator" / "config.yaml",
        port=int(environment.get("NSTANCE_DEV_PORT") or dev_config.DEFAULT_PORT),
        k8s_port=int(environment.get("NSTANCE_DEV_K8S_PORT") or 6443),
        endpoint=f"http://127.0.0.1:{environment.get('NSTANCE_DEV_S3_PORT') or 8989}",
        standbys=environment.get("STANDBYS", "") not in ("", "0"),
        probes=environment.get("NSTANCE_DEV_PROBES") or ":8081",
        only=only,
    )


def operator_config(options: Options) -> str:
    config = {
        "cluster_id": CLUSTER,
        "tenant": "default",
        "shards": {
            f"dev-{number}": {
                "registration_addr": options.addresses(number, REGISTRATION_PORT),
                "operator_addr": options.addresses(number, OPERATOR_PORT),
            }
            for number in range(1, SHARDS + 1)
        },
    }
    return yaml.safe_dump(config, sort_keys=False)


async def prepare(options: Options, screen: Screen, clock: clocks.Clock) -> None:
    options.config.parent.mkdir(parents=True, exist_ok=True)
    options.config.write_text(operator_config(options))
    options.kubeconfig.write_text(KUBECONFIG.format(port=options.k8s_port))
    health = [f"http://127.0.0.1:{options.port + number * shards.SHARD_PORT_OFFSET}/health" for number in range(SHARDS)]
    for url in (*health, f"http://127.0.0.1:{options.k8s_port}/readyz"):
        await _wait_for(url, screen, clock)
    kube = HttpKube(kubeconfig.load([options.kubeconfig]), clock)
    try:
        certificate = (options.temp / "dev-s3/cluster/ca.crt").read_text()
        await _apply(kube, kinds.CONFIG_MAP, NAMES.ca_configmap, {"ca.crt": certificate})
        await _apply(kube, kinds.SERVICE_ACCOUNT, NAMES.service_account, {})
        if await find(kube, kinds.SECRET, NAMES.cert_secret, namespace=NAMESPACE) is None:
            nonce = await child.run_admin(
                *("cluster", "nonce", "--cluster-id", CLUSTER, "--storage-bucket", "dev", "--key-provider", "env"),
                *("--output", "-"),
                environment=shards.dev_environment(os.environ, endpoint=options.endpoint),
            )
            encoded = base64.b64encode(nonce).decode()
            await _apply(kube, kinds.SECRET, NAMES.nonce_secret, {"nonce.jwt": encoded})
            screen.say("stored the cluster's CA and a new registration nonce in dev-k8s")
    finally:
        await kube.close()


async def _wait_for(url: str, screen: Screen, clock: clocks.Clock) -> None:
    has_printed = False
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
        while True:
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return
            except (aiohttp.ClientError, TimeoutError):
                pass
            if not has_printed:
                screen.say(f"waiting for {url}")
                has_printed = True
            await clock.sleep(POLL_SECONDS)


async def _apply(kube: Kube, kind: kinds.Kind, name: str, data: Object) -> None:
    content = {"data": data} if data else {}
    try:
        await kube.create(kind, {"metadata": {"name": name}, **content}, namespace=NAMESPACE)
    except errors.AlreadyExistsError:
        await kube.patch(kind, name, content, namespace=NAMESPACE)


def operator(options: Options, clock: clocks.Clock) -> child.Child:
    command = [
        child.program_path("nstance-operator"),
        *("--config", str(options.config), "--kubeconfig", str(options.kubeconfig), "--disable-webhooks"),
        "--on-demand-namespaces=",  # all namespaces
        *("--health-probe-bind-address", options.probes, "--zap-encoder", "console"),
    ]
    environment = {"NSTANCE_NAMESPACE": NAMESPACE, **os.environ, "NSTANCE_K8S_JSON": "true"}
    return child.Child("operator", command, environment, temp=options.temp, clock=clock)


async def run(options: Options) -> None:
    stop = signals.stop_event()
    clock = clocks.SystemClock()
    screen = Screen(sys.stdout, clock, timed=False)
    leftovers.claim(options.temp / "pids", "dev-operator")
    supervisor = Supervisor([operator(options, clock)], screen, clock)
    try:
        if not options.only:
            async with background.running([prepare(options, screen, clock), stop.wait()]) as tasks:
                await background.first_end(tasks)
            if stop.is_set():
                return
        await supervisor.start()
        screen.say(f"try: kubectl --kubeconfig {options.kubeconfig} get machinepools,nodes")
        async with supervisor.reloading():
            while not stop.is_set():
                await supervisor.poll()
                await clock.sleep(POLL_SECONDS)
    finally:
        await supervisor.stop()
        leftovers.remove_record(options.temp / "pids", "dev-operator")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m nstance.dev.operator", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--only",
        action="store_true",
        help="run the operator with temp/operator/ as it is (KUBECONFIG: another cluster)",
    )
    options = read_options(os.environ, only=parser.parse_args(argv).only)
    for path, hint in (
        (options.config, "cluster_id, tenant and the shards' addresses"),
        (options.kubeconfig, "for kind: kind get kubeconfig --name nstance-dev > temp/operator/kubeconfig"),
    ):
        if options.only and not path.exists():
            sys.exit(f"dev: {path} is missing ({hint}): see docs/kind.md")
    try:
        uvloop.run(run(options))
    except (DevError, errors.KubeError, kubeconfig.KubeconfigError, OSError) as problem:
        sys.exit(f"dev: {problem}")


if __name__ == "__main__":
    main()
