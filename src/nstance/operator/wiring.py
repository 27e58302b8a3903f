"""Putting the operator together: the only file here that names concrete ports.

The order: the configuration, the API server, the probes and the webhook (which every replica serves), the lease if there
is an election, the identity, then links and controllers until the end. The trap: the lease is given back only after
everything that acts has ended, so that two operators never act at once.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from nstance.clock import Clock, Rng
from nstance.kube import kinds, kubeconfig, lease
from nstance.kube.events import Recorder
from nstance.kube.http import HttpKube
from nstance.kube.kubeconfig import Access
from nstance.kube.port import Kube
from nstance.operator import workload_cluster
from nstance.operator.config_file import Configuration, ConfigWatcher
from nstance.operator.controllers import registry
from nstance.operator.controllers.context import Controller, ControllerContext, Mirrors, Settings
from nstance.operator.errors import FatalError
from nstance.operator.metrics import Metrics
from nstance.operator.options import Options
from nstance.operator.serving import health
from nstance.operator.serving.webhook_certificate import WebhookCertificate
from nstance.operator.serving.webhooks import WebhookServer
from nstance.operator.shards.identity import IdentityStore
from nstance.operator.shards.links import Links
from nstance.wire.credentials import Credentials

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0

Connect = Callable[[Access], Kube]
Build = Callable[[ControllerContext], list[Controller]]


class Operator:
    def __init__(
        self,
        options: Options,
        *,
        clock: Clock,
        rng: Rng,
        variables: Mapping[str, str] | None = None,
        home: Path | None = None,
        connect: Connect | None = None,
        build: Build = registry.build_controllers,
        service_account: Path = kubeconfig.SERVICE_ACCOUNT,
    ) -> None:
        """`connect` and `build` are for tests and simulations."""
        self.options = options
        self.metrics = Metrics()
        self.probes = health.ProbeServer(lambda: self.unready)
        self.scrapes = health.MetricsServer(self.metrics)
        self.webhook: WebhookServer | None = None
        self.links: Links | None = None
        self._clock = clock
        self._rng = rng
        self._variables = os.environ if variables is None else variables
        self._home = home or Path.home()
        self._connect: Connect = connect or (lambda access: HttpKube(access, clock))
        self._build = build
        self._service_account = service_account
        self._stopping = asyncio.Event()
        self._state: str | None = "starting"  # why it is not ready
        self._mirrors: tuple[Mirrors, ...] = ()
        self._controllers: list[Controller] = []

    @property
    def unready(self) -> str | None:
        if self._state is not None:
            return self._state
        for mirrors in self._mirrors:
            for mirror in mirrors.all():
                if not mirror.synced.is_set():
                    return mirror.stale_reason or f"{mirror.kind.plural} have not been read yet"
        return None if all(each.synced for each in self._controllers) else "controllers have not seen everything yet"

    def stop(self) -> None:
        """Orderly; may be called at any time."""
        self._stopping.set()

    async def run(self) -> None:
        """Until `stop`. Raises Fatal."""
        life = asyncio.ensure_future(self._live())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({life, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            life.cancel()
            await asyncio.wait({life, stopping})
        if not life.cancelled():
            life.result()

    async def _live(self) -> None:
        following = ConfigWatcher(self.options.config, clock=self._clock)
        access = self._access()
        namespace = self._namespace(access)
        kube = self._connect(access)
        log.info(
            "started",
            extra={"cluster": following.current.cluster, "tenant": following.current.tenant, "namespace": namespace},
        )
        try:
            await self._open_doors(kube, namespace, following.current)
            jobs: list[Coroutine[Any, Any, None]] = [
                following.run(self._reconfigured),
                self._elected(kube, namespace, lambda: self._work(kube, access, namespace, following)),
            ]
            if self.webhook is not None:
                jobs.append(self.webhook.run())
            await together(jobs)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    for each in (self.probes, self.scrapes, *([self.webhook] if self.webhook is not None else ())):
                        await each.door.close()
                    await kube.close()

    async def _open_doors(self, kube: Kube, namespace: str, configuration: Configuration) -> None:
        if self.options.health is not None:
            await health.start_listener(self.probes.door, self.options.health, flag="--health-probe-bind-address")
        if self.options.metrics is not None:
            await health.start_listener(self.scrapes.door, self.options.metrics, flag="--metrics-bind-address")
        if self.options.webhook is not None:
            serving = WebhookCertificate(
                kube,
                namespace=namespace,
                cluster=configuration.cluster,
                configuration=self.options.webhook_configuration,
                mounted=self.options.webhook_certificates,
                clock=self._clock,
                rng=self._rng,
            )
            self.webhook = WebhookServer(serving)
            await health.start_listener(self.webhook.door, self.options.webhook, flag="--webhook-bind-address")

    async def _elected(self, kube: Kube, namespace: str, work: Callable[[], Awaitable[None]]) -> None:
        if not self.options.leader_elect:
            await work()
            return
        election = lease.Election(
            kube,
            namespace=namespace,
            identity=lease.identity(socket.gethostname(), self._rng),
            clock=self._clock,
            rng=self._rng,
        )
        self._state = None  # a replica that waits is well
        try:
            await election.run(work)
        except lease.LeadershipLostError as problem:
            raise FatalError(f"leadership was lost, ending: {problem}") from problem

    async def _work(self, kube: Kube, access: Access, namespace: str, following: ConfigWatcher) -> None:
        self._state = "registering with the shards"
        self.metrics.leads(True)
        configuration = following.current
        environment = self.options.environment
        keeper = IdentityStore(kube, environment.names(namespace), configuration, clock=self._clock, rng=self._rng)
        await keeper.obtain()
        links = self.links = Links(
            following.current,
            credentials=keeper.credentials,
            metrics=self.metrics,
            clock=self._clock,
            rng=self._rng,
        )
        settings = Settings(
            namespace=namespace,
            cluster=configuration.cluster,
            tenant=configuration.tenant,
            server=access.server,
            server_ca=lambda: _content(access.ca),
            endpoint=environment.endpoint,
            service_account=environment.service_account,
        )
        parts, remote = self._parts(kube, settings, links)
        self._controllers = self._build(parts)
        for each in self._controllers:
            links.listen(each)
        self._mirrors = (parts.mirrors, parts.workload_mirrors)
        self._state = None

        def shown(credentials: Credentials) -> None:
            self.metrics.certificate_expires(credentials.expires)

        mirrors = {id(mirror): mirror for each in self._mirrors for mirror in each.all()}
        try:
            await together(
                [
                    links.run(),
                    keeper.renew(links.renew_certificate, shown),
                    *(
                        recorder.run()
                        for recorder in {id(r): r for r in (parts.events, parts.workload_events)}.values()
                    ),
                    *(mirror.run() for mirror in mirrors.values()),
                    *(each.run() for each in self._controllers),
                ]
            )
        finally:
            self.metrics.leads(False)
            if remote is not None:
                await remote.close()

    def _parts(
        self, kube: Kube, settings: Settings, links: Links
    ) -> tuple[ControllerContext, workload_cluster.RemoteKube | None]:
        instance = socket.gethostname()
        mirrors = Mirrors(kube, clock=self._clock, rng=self._rng)
        events = Recorder(kube, clock=self._clock, rng=self._rng, instance=instance)
        remote, there, there_events, there_mirrors = None, kube, events, mirrors
        if settings.endpoint is not None:
            name = workload_cluster.secret_name(settings.name)
            secrets = mirrors.of(kinds.SECRET, namespace=settings.namespace, fields=f"metadata.name={name}")
            there = remote = workload_cluster.RemoteKube(secrets, name, connect=self._connect)
            there_mirrors = Mirrors(remote, clock=self._clock, rng=self._rng)
            there_events = Recorder(remote, clock=self._clock, rng=self._rng, instance=instance)
        parts = ControllerContext(
            settings=settings,
            kube=kube,
            mirrors=mirrors,
            workload=there,
            workload_mirrors=there_mirrors,
            events=events,
            workload_events=there_events,
            shards=links,
            metrics=self.metrics,
            clock=self._clock,
            rng=self._rng,
        )
        return parts, remote

    def _reconfigured(self, configuration: Configuration) -> None:
        if self.links is not None:
            self.links.apply(configuration)

    def _access(self) -> Access:
        try:
            return kubeconfig.find(
                self.options.kubeconfig,
                environment=self._variables,
                home=self._home,
                service_account=self._service_account,
            )
        except kubeconfig.KubeconfigError as problem:
            raise FatalError(str(problem)) from problem

    def _namespace(self, access: Access) -> str:
        """NSTANCE_NAMESPACE, the pod's, or the kubeconfig's."""
        pod = ""
        with contextlib.suppress(OSError):
            pod = (self._service_account / "namespace").read_text().strip()
        return self.options.environment.namespace or pod or access.namespace


async def together(jobs: list[Coroutine[Any, Any, None]]) -> None:
    """All of them until one ends; its error is raised as it is, after the others were cancelled and have ended."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()


def _content(source: bytes | Path | None) -> bytes | None:
    return source.read_bytes() if isinstance(source, Path) else source
