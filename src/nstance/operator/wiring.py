"""Assembles the operator; the only module here that names concrete ports.

The order: the configuration, the API server, the probes and the webhook (every replica serves them), the lease if there is
an election, the identity, then links and controllers until the end. The trap: the lease is released only after links and
controllers have ended, so that two operators never act at once.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
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
from nstance.operator.options import BindAddress, Options
from nstance.operator.serving import health
from nstance.operator.serving.webhook_certificate import WebhookCertificate
from nstance.operator.serving.webhooks import WebhookServer
from nstance.operator.shards.identity import IdentityStore
from nstance.operator.shards.links import Links
from nstance.tasks import background
from nstance.telemetry.tracing import Tracing
from nstance.wire.credentials import Credentials
from nstance.wire.http_listener import HttpListener

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0

Connect = Callable[[Access], Kube]
Build = Callable[[ControllerContext], list[Controller]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where the process runs: its environment, the files that Kubernetes access is read from, and its traces."""

    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)
    home: Path = field(default_factory=Path.home)
    service_account: Path = kubeconfig.SERVICE_ACCOUNT
    tracing: Tracing = field(default_factory=Tracing)


class Operator:
    def __init__(
        self,
        options: Options,
        *,
        clock: Clock,
        rng: Rng,
        host: Host | None = None,
        connect: Connect | None = None,
        build: Build = registry.build_controllers,
    ) -> None:
        """`host`, `connect` and `build` are for tests and simulations."""
        self.options = options
        self._host = host or Host()
        self.metrics = Metrics(self._host.tracing.counts)
        self.probe_server = health.ProbeServer(lambda: self.unready_reason)
        self.metrics_server = health.MetricsServer(self.metrics)
        self.webhook: WebhookServer | None = None
        self.links: Links | None = None
        self._clock = clock
        self._rng = rng
        self._connect: Connect = connect or self._connect_http
        self._build = build
        self._stopping = asyncio.Event()
        self._phase: str | None = "starting"  # why it is not ready
        self._mirrors: tuple[Mirrors, ...] = ()

    def _connect_http(self, access: Access) -> Kube:
        return HttpKube(access, self._clock, on_request=self.metrics.kubernetes_called)

    @property
    def unready_reason(self) -> str | None:
        if self._phase is not None:
            return self._phase
        for mirrors in self._mirrors:
            for mirror in mirrors.all():
                if not mirror.synced.is_set():
                    return mirror.stale_reason or "the objects have not been read yet"
        return None

    def stop(self) -> None:
        """Graceful; may be called at any time."""
        self._stopping.set()

    async def run(self) -> None:
        """Until `stop`. Raises FatalError."""
        serving = asyncio.ensure_future(self._serve())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            serving.cancel()
            await asyncio.wait({serving, stopping})
        if not serving.cancelled():
            serving.result()

    async def _serve(self) -> None:
        watcher = ConfigWatcher(self.options.config, clock=self._clock, poll_seconds=self.options.waits.config_poll)
        access = self._find_access()
        namespace = self._find_namespace(access)
        kube = self._connect(access)
        lease_kube = self._connect(access)  # renewals must not wait behind other requests for a connection
        configuration = watcher.current
        log.info(
            "operator started",
            extra={"cluster": configuration.cluster, "tenant": configuration.tenant, "namespace": namespace},
        )
        if self.options.webhook is not None:
            certificate = WebhookCertificate(
                kube,
                self.options,
                namespace=namespace,
                cluster=configuration.cluster,
                clock=self._clock,
                rng=self._rng,
            )
            self.webhook = WebhookServer(certificate)
        listeners = self._listeners()
        try:
            for listener, bind, flag in listeners:
                await health.start_listener(listener, bind, flag=flag)
            jobs: list[Coroutine[Any, Any, None]] = [
                watcher.run(self._on_config_change),
                self._elect(lease_kube, namespace, lambda: self._lead(kube, access, namespace, watcher)),
            ]
            if self.webhook is not None:
                jobs.append(self.webhook.certificate.run())
            await run_until_first_end(jobs)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    for listener, _, _ in listeners:
                        await listener.close()
                    for each in (kube, lease_kube):
                        await each.close()

    def _listeners(self) -> list[tuple[HttpListener, BindAddress, str]]:
        """Each with its address and the flag that sets it."""
        return [
            (server.listener, bind, flag)
            for server, bind, flag in (
                (self.probe_server, self.options.health, "--health-probe-bind-address"),
                (self.metrics_server, self.options.metrics, "--metrics-bind-address"),
                (self.webhook, self.options.webhook, "--webhook-bind-address"),
            )
            if server is not None and bind is not None
        ]

    async def _elect(self, kube: Kube, namespace: str, work: Callable[[], Awaitable[None]]) -> None:
        if not self.options.leader_elect:
            await work()
            return
        election = lease.Election(
            kube,
            namespace=namespace,
            identity=lease.identity(socket.gethostname(), self._rng),
            clock=self._clock,
            rng=self._rng,
            times=self.options.lease_times,
        )
        self._phase = None  # a replica that waits for the lease is ready
        try:
            await election.run(work)
        except lease.LeadershipLostError as problem:
            raise FatalError(f"leadership lost, exiting: {problem}") from problem

    async def _lead(self, kube: Kube, access: Access, namespace: str, watcher: ConfigWatcher) -> None:
        self._phase = "registering with the shards"
        self.metrics.set_leader(True)
        configuration = watcher.current
        environment = replace(self.options.environment, namespace=namespace)
        identity = IdentityStore(
            kube, environment, configuration, clock=self._clock, rng=self._rng, waits=self.options.waits
        )
        await identity.obtain()
        links = self.links = Links(
            watcher.current,
            credentials=identity.credentials,
            metrics=self.metrics,
            clock=self._clock,
            rng=self._rng,
            waits=self.options.waits,
        )
        settings = Settings(
            namespace=namespace,
            cluster=configuration.cluster,
            tenant=configuration.tenant,
            server=access.server,
            server_ca=lambda: _read(access.ca),
            endpoint=environment.endpoint,
            service_account=environment.service_account,
            key_secret=environment.key_secret,
            on_demand_namespaces=self.options.on_demand_namespaces,
            delete_nodes=self.options.delete_nodes,
            waits=self.options.waits,
        )
        context, remote = self._context(kube, settings, links)
        controllers = self._build(context)
        for controller in controllers:
            links.add_listener(controller)
        self._mirrors = (context.mirrors, context.workload_mirrors)
        self._phase = None

        def on_renewal(credentials: Credentials) -> None:
            self.metrics.set_certificate_expiry(credentials.expires)

        # In a single cluster, workload and management share recorder and mirrors: each runs once.
        recorders = {id(each): each for each in (context.events, context.workload_events)}
        mirrors = {id(mirror): mirror for each in self._mirrors for mirror in each.all()}
        try:
            await run_until_first_end(
                [
                    links.run(),
                    identity.renew(links.renew_certificate, on_renewal),
                    *(recorder.run() for recorder in recorders.values()),
                    *(mirror.run() for mirror in mirrors.values()),
                    *(controller.run() for controller in controllers),
                    context.cluster_api.run(),
                ]
            )
        finally:
            self.metrics.set_leader(False)
            if remote is not None:
                await remote.close()

    def _context(
        self, kube: Kube, settings: Settings, links: Links
    ) -> tuple[ControllerContext, workload_cluster.RemoteKube | None]:
        instance = socket.gethostname()
        mirrors = Mirrors(kube, clock=self._clock, rng=self._rng)
        events = Recorder(kube, clock=self._clock, rng=self._rng, instance=instance)
        remote, workload, workload_events, workload_mirrors = None, kube, events, mirrors
        if settings.endpoint is not None:
            name = workload_cluster.secret_name(settings.name)
            secrets = mirrors.of(kinds.SECRET, namespace=settings.namespace, fields=f"metadata.name={name}")
            workload = remote = workload_cluster.RemoteKube(secrets, name, connect=self._connect)
            workload_mirrors = Mirrors(remote, clock=self._clock, rng=self._rng)
            workload_events = Recorder(remote, clock=self._clock, rng=self._rng, instance=instance)
        context = ControllerContext(
            settings=settings,
            kube=kube,
            mirrors=mirrors,
            workload=workload,
            workload_mirrors=workload_mirrors,
            events=events,
            workload_events=workload_events,
            shards=links,
            cluster_api=mirrors.cluster_api(settings),
            metrics=self.metrics,
            tracer=self._host.tracing.tracer,
            clock=self._clock,
            rng=self._rng,
        )
        return context, remote

    def _on_config_change(self, configuration: Configuration) -> None:
        if self.links is not None:
            self.links.apply(configuration)

    def _find_access(self) -> Access:
        try:
            return kubeconfig.find(
                self.options.kubeconfig,
                environment=self._host.variables,
                home=self._host.home,
                service_account=self._host.service_account,
            )
        except kubeconfig.KubeconfigError as problem:
            raise FatalError(str(problem)) from problem

    def _find_namespace(self, access: Access) -> str:
        """NSTANCE_NAMESPACE, the pod's, or the kubeconfig's."""
        pod = ""
        with contextlib.suppress(OSError):
            pod = (self._host.service_account / "namespace").read_text().strip()
        return self.options.environment.namespace or pod or access.namespace


async def run_until_first_end(jobs: list[Coroutine[Any, Any, None]]) -> None:
    """Runs all jobs until one ends, cancels the others and waits for them. Raises the first one's error unchanged."""
    async with background.running(jobs) as tasks:
        await background.first_end(tasks)


def _read(source: bytes | Path | None) -> bytes | None:
    return source.read_bytes() if isinstance(source, Path) else source
