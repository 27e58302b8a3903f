"""The server's process: boots a server with real ports. The only file that names concrete ones.

Boot retries what may recover (storage, an invalid configuration), and the health endpoint reports what it waits for. What
cannot recover (a store without conditional writes, a wrong encryption key) ends the process with an error.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nstance.authority.operators import Operators
from nstance.clock import AnchoredClock, Rng
from nstance.config import addresses
from nstance.config.addresses import Endpoints, Service
from nstance.config.model.settings import Settings
from nstance.model.decision import ReasonCode
from nstance.model.ids import ClusterId, ShardId
from nstance.objects import errors, lease, probe
from nstance.objects.port import ObjectStore
from nstance.objects.wrapped import ObservedStore
from nstance.pki import names
from nstance.providers.port import Instances
from nstance.secretstore.port import SecretStore
from nstance.server import configured_provider, reserved_ports, stores
from nstance.server.api import grpc_ports
from nstance.server.cache.cache import Cache
from nstance.server.config import advertised as advertising
from nstance.server.config import configuration as configurations
from nstance.server.config.configuration import Configuration, NoConfigurationError
from nstance.server.election import peer_http
from nstance.server.errors import FatalError
from nstance.server.identity.certificate_expiry import CertificateExpiry
from nstance.server.identity.issuer import Issuer, server_identity
from nstance.server.identity.tls_contexts import TlsContexts
from nstance.server.identity.trust import RETRYABLE, Trust
from nstance.server.leader.environment import Environment
from nstance.server.leader.watchdog import Watchdog
from nstance.server.options import Options
from nstance.server.probes import Probes
from nstance.server.server import Server
from nstance.server.state.instance_traces import InstanceTraces
from nstance.tasks import background
from nstance.tasks.backoff import retry
from nstance.telemetry import loop_lag
from nstance.telemetry.metrics import CacheCount, Metrics
from nstance.telemetry.tracing import Tracing

log = logging.getLogger(__name__)

T = TypeVar("T")

HEALTH = addresses.Address("0.0.0.0", 8990)  # until the configuration is known
# Codes of `objects.errors`: storage does not do what it should.
STORAGE_FAILURES = frozenset({"unavailable", "unknown_outcome", "permission_denied"})
EXIT_JITTER_SECONDS = (10.0, 40.0)  # until the configuration is known
SHUTDOWN_SECONDS = 10.0  # until the configuration is known


class ServerProcess:
    def __init__(
        self,
        options: Options,
        *,
        clock: AnchoredClock,
        rng: Rng,
        store: ObjectStore | None = None,
        provider: Instances | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """`store` and `provider` replace those that the options and the configuration name; they are not closed here."""
        assert options.shard is not None
        self.options = options
        self.shard: ShardId = options.shard
        self.metrics = Metrics()
        self.metrics.add_process()
        self._traces: InstanceTraces | None = None
        if tracing is not None:
            self.metrics.count_spans(tracing.counts)
            self._traces = InstanceTraces(tracing.tracer) if tracing.tracer is not None else None
        self._boot_problem: str | None = "starting"  # what boot waits for
        self._storage_failed_at = 0.0  # by wall time; 0: no request has failed
        self.exit_jitter = EXIT_JITTER_SECONDS
        self.server: Server | None = None  # once it is configured
        self.endpoints: Endpoints | None = None
        self._clock = clock
        self._rng = rng
        self._store = store
        self._provider = provider
        self._health_address: addresses.Address | None = None  # where probes are answered now
        self._stopping = asyncio.Event()
        self._shutdown_seconds = SHUTDOWN_SECONDS
        self._deadline: asyncio.Timeout | None = None  # while it runs

    def stop(self) -> None:
        """Begin an orderly stop, which releases the lease. After `shard.shutdown_timeout` it is aborted."""
        if self._deadline is not None and not self._stopping.is_set():
            self._deadline.reschedule(asyncio.get_running_loop().time() + self._shutdown_seconds)
        if not self._stopping.is_set():
            role = "leader" if self.server is not None and self.server.elector.has_term else "standby"
            log.info("server stopping", extra={"server": self.options.id, "role": role})
        self._stopping.set()
        if self.server is not None:
            self.server.stop()

    async def run(self) -> None:
        """Until stopped. Raises FatalError."""
        deadline = asyncio.timeout(None)
        try:
            async with deadline:
                self._deadline = deadline
                try:
                    await self._run()
                finally:
                    self._deadline = None
        except TimeoutError:
            if not deadline.expired():
                raise
            raise FatalError(
                f"the orderly stop took longer than {self._shutdown_seconds:g} s (shard.shutdown_timeout) and was aborted"
            ) from None

    async def _run(self) -> None:
        shard_store = self._store if self._store is not None else stores.open_shard_store(self.options)
        store = ObservedStore(shard_store, self._on_storage_request)
        probes = Probes(health_problem=self._health_problem, waits_for=self._waits_for, metrics=self.metrics)
        log.info("server starting", extra={"server": self.options.id, "shard": self.shard})
        # Beside the rest of the boot: with slow storage each request that is waited for counts.
        store_check = asyncio.create_task(self._check_store(store))
        try:
            configuration = await self._wait_for_configuration(store, probes, store_check)
            if configuration is not None:
                async with contextlib.AsyncExitStack() as opened:
                    await self._serve(store, configuration, opened, store_check)
        finally:
            await background.end([store_check])
            await probes.listener.close()
            if self._store is None:
                await store.close()

    def _on_storage_request(self, op: str, code: str) -> None:
        self.metrics.storage_request(op, code)
        if code in STORAGE_FAILURES:
            self._storage_failed_at = self._clock.wall()

    def _health_problem(self) -> str | None:
        """Why this server is not healthy. A damaged journal does not matter as long as another server leads."""
        if self._boot_problem is not None or self.server is None or not self.server.damage:
            return self._boot_problem
        return f"nobody can lead: {self.server.damage}"

    def _waits_for(self) -> str:
        """Why nobody leads. This is no reason to be replaced: a new server would wait for the same."""
        problem = self.server.waits_for if self.server is not None else ""
        return problem and f"nobody leads: {problem}"

    # ---- boot

    async def _check_store(self, store: ObjectStore) -> None:
        """Returns when the store has honored all conditions. Raises FatalError if it does not."""

        def on_failure(problem: Exception, failures: int) -> float:
            # A store that can be read but not written would otherwise keep the server waiting without a word.
            denied = isinstance(problem, errors.PermissionDeniedError)
            what = "object storage denies access" if denied else "object storage does not answer"
            self._boot_problem = f"{what}: {problem or 'timed out'}"
            log.error("failed to check the store, will retry: %s", self._boot_problem)
            return self.options.waits.boot_retry.delay(failures, self._rng)

        try:
            # The kernel decides who wins in a directory, and Google in its own; a server that speaks S3 may have races.
            races = probe.REPLACE_RACES if self.options.storage == "s3" else 1
            await retry(
                lambda: probe.probe(
                    store, f"shard/{self.shard}/", clock=self._clock, rng=self._rng, replace_races=races
                ),
                clock=self._clock,
                expected=(errors.StorageError, TimeoutError),
                on_failure=on_failure,
            )
        except probe.UnsuitableStoreError as problem:
            raise FatalError(str(problem)) from problem

    async def _passes_or_stops(self, store_check: asyncio.Task[None]) -> bool:
        """Wait for the check; False if stopped before. Raises FatalError."""
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((store_check, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if store_check.done():
            store_check.result()
        return store_check.done()

    async def _wait_for_configuration(
        self, store: ObjectStore, probes: Probes, store_check: asyncio.Task[None]
    ) -> Configuration | None:
        """Wait for a valid configuration; None if stopped before."""
        failures = 0
        while not self._stopping.is_set():
            if store_check.done():
                store_check.result()
            try:
                configuration = await configurations.read(store, self.shard)
                await self._open_probes(probes, configuration.settings.shard.bind.by_service()[Service.HEALTH])
                return configuration
            except errors.PermissionDeniedError as problem:
                self._boot_problem = f"object storage denies access: {problem}"
            except NoConfigurationError as problem:
                self._boot_problem = str(problem)
            except (errors.StorageError, TimeoutError) as problem:
                self._boot_problem = f"object storage does not answer: {problem or 'timed out'}"
            if self._health_address is None:
                # Health is answered during boot on the default port: the configured one is not known yet.
                try:
                    await self._open_probes(probes, HEALTH)
                except FatalError as problem:
                    log.warning("failed to open the health endpoint: %s", problem)
            failures += 1
            wait = self.options.waits.boot_retry.delay(failures, self._rng)
            log.error("failed to start, will retry: %s", self._boot_problem, extra={"retry_seconds": round(wait, 1)})
            await self.pause(wait)
        return None

    async def _open_probes(self, probes: Probes, bind: addresses.Address) -> None:
        """Answer probes at this address, and no longer at another one."""
        try:
            shifted = bind.shifted(self.options.port_offset)
        except ValueError as problem:
            raise FatalError(f"--port-offset: {problem}") from problem
        if self._health_address == shifted:
            return
        if self._health_address is not None:
            await probes.listener.close()
            self._health_address = None
        try:
            await probes.listener.start(shifted.host, shifted.port)
        except OSError as problem:
            raise FatalError(reserved_ports.taken(Service.HEALTH, shifted, problem)) from problem
        self._health_address = shifted

    async def pause(self, seconds: float) -> None:
        """Wait, but not longer than until `stop`."""
        await background.is_set_within(self._stopping, seconds)

    async def _wait_for_trust(self, read: Callable[[], Awaitable[T]], what: str) -> T:
        """Retries until storage and the store of the encryption key answer. Raises FatalError."""
        while True:
            try:
                return await read()
            except RETRYABLE as problem:
                self._boot_problem = f"failed to read {what}: {problem or 'timed out'}"
                log.error("failed to start, will retry: %s", self._boot_problem)
                await self.pause(self._rng.uniform(1.0, 3.0))
                if self._stopping.is_set():
                    raise FatalError(f"stopped before {what} was read") from problem

    # ---- serving

    async def _serve(
        self,
        store: ObjectStore,
        configuration: Configuration,
        opened: contextlib.AsyncExitStack,
        store_check: asyncio.Task[None],
    ) -> None:
        settings, clock, rng = configuration.settings, self._clock, self._rng
        jitter = settings.shard.error_exit_jitter
        self.exit_jitter = (jitter.min_delay, jitter.max_delay)
        self._shutdown_seconds = settings.shard.shutdown_timeout
        cluster = ClusterId(settings.cluster.id)
        cluster_store = stores.open_cluster_store(self.options, settings, store)
        if cluster_store is not store:
            opened.push_async_callback(cluster_store.close)
        trust = Trust(cluster_store, settings, self.options, clock=clock, rng=rng)
        opened.push_async_callback(trust.close)
        secret_store = await self._wait_for_trust(trust.secret_store, "the encryption key")
        authority = await self._wait_for_trust(trust.read, "the cluster's CA")
        endpoints = self.endpoints = self._endpoints(settings)
        hosts = [a.host for addresses in endpoints.advertise.values() for a in addresses]
        if settings.shard.leader_network is not None:
            hosts += [settings.shard.leader_network.ip, settings.shard.leader_network.ip6]
        name = names.Server(cluster, self.shard, self.options.id)
        identity = server_identity(authority, name, hosts=hosts, clock=clock, rng=rng)
        contexts = TlsContexts(identity, authority.bundle)
        issuer = Issuer(authority, shard=self.shard, clock=clock, rng=rng)
        cache = self._open_cache(cluster, opened)
        advertised = advertising.advertised(endpoints)
        api = grpc_ports.ApiContext(
            server=self.options.id,
            cluster=cluster,
            endpoints=endpoints,
            advertised=advertised,
            tls=contexts.grpc,
            store=store,
            cache=cache,
            operators=Operators(
                cluster_store, prefix=settings.cluster.storage.prefix, cluster=cluster, clock=clock, rng=rng
            ),
            metrics=self.metrics,
            waits=self.options.waits,
            clock=clock,
            rng=rng,
            standbys=lambda: self.server.elector.standbys() if self.server is not None else {},
            storage_failed_at=lambda: self._storage_failed_at,
        )
        env = Environment(
            cluster=cluster,
            shard=self.shard,
            clock=clock,
            rng=rng,
            store=store,
            secret_store=secret_store,
            provider=self._open_provider(settings, secret_store, opened),
            open_balancers=configured_provider.open_balancers(secret_store, clock, opened),
            issuer=issuer,
            dialer=peer_http.HttpDialer(contexts.peer_client, cluster=cluster, shard=self.shard),
            advertised=advertised,
            ports=lambda context: grpc_ports.grpc_ports(context, api),
            history=cache,
            metrics=self.metrics,
            waits=self.options.waits,
            traces=self._traces,
            cache=cache,
            watchdog=lambda term, length: Watchdog(term, clock=clock, length=length),
        )
        me = lease.Holder(
            server=self.options.id,
            incarnation=f"{self.options.id}.{rng.bits(64):016x}",
            addresses=tuple(str(a) for a in endpoints.advertise[Service.ELECTION]),
            fingerprint=identity.fingerprint,
        )
        server = self.server = Server(env, me, configuration)
        trust.follow(lambda: server.active_config.configuration.settings)
        for service in grpc_ports.SERVICES:
            await reserved_ports.reserve(service, endpoints.bind[service], opened)
        await self._open_peers(server, contexts, cluster, opened)
        await cache.flush()
        if not await self._passes_or_stops(store_check):
            return  # nothing below may run on a store in which two writers can win
        self._boot_problem = None
        log.info("server ready", extra={"server": self.options.id, "shard": self.shard, "cluster": cluster})
        if self._stopping.is_set():
            server.stop()
        expiries = CertificateExpiry(self.metrics, clock, self._alarm)
        await server.run(
            server.active_config.follow(leading=lambda: server.elector.has_term),
            loop_lag.measure(clock, self.metrics.loop_lag),
            trust.run(issuer, contexts, name, hosts=hosts, expiry=expiries),
        )

    def _open_cache(self, cluster: ClusterId, opened: contextlib.AsyncExitStack) -> Cache:
        path = self.options.cachedir / "db" / "nstance.db"
        cache = Cache.open(path, cluster=cluster, shard=self.shard, clock=self._clock)
        opened.push_async_callback(cache.close)
        self.metrics.count_cache(lambda: CacheCount(on_disk=cache.on_disk, dropped=cache.dropped))
        return cache

    def _open_provider(
        self, settings: Settings, secret_store: SecretStore, opened: contextlib.AsyncExitStack
    ) -> Instances:
        if self._provider is not None:
            return self._provider
        provider = configured_provider.open_configured(settings, self.shard, self.options, self._clock, secret_store)
        opened.push_async_callback(provider.close)
        return provider

    def _endpoints(self, settings: Settings) -> Endpoints:
        try:
            return addresses.resolve_endpoints(
                settings.shard.bind.by_service(),
                settings.shard.advertise.by_service(),
                primary=lambda: self.options.advertise_host or primary_address(),
                port_offset=self.options.port_offset,
            )
        except ValueError as problem:
            raise FatalError(f"--port-offset: {problem}") from problem

    async def _open_peers(
        self, server: Server, contexts: TlsContexts, cluster: ClusterId, opened: contextlib.AsyncExitStack
    ) -> None:
        assert self.endpoints is not None
        bind = self.endpoints.bind[Service.ELECTION]
        peers = peer_http.PeerServer(
            accept=server.elector.accept,
            held=lambda: server.elector.held,
            context=contexts.peer_server,
            cluster=cluster,
            shard=self.shard,
        )
        try:
            await peers.listener.start(bind.host, bind.port)
        except OSError as problem:
            raise FatalError(reserved_ports.taken(Service.ELECTION, bind, problem)) from problem
        opened.push_async_callback(peers.listener.close)

    def _alarm(self, message: str) -> bool:
        context = self.server.leader.context if self.server is not None else None
        if context is not None:
            context.shard.event_log.record_for_all(ReasonCode.SECURITY, message)
        return context is not None


def primary_address() -> str:
    """The address from which this machine reaches others. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
        try:
            probe_socket.connect(("192.0.2.1", 9))
            return str(probe_socket.getsockname()[0])
        except OSError:
            return "127.0.0.1"
