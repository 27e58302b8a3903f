"""A whole server, put together: the only file that names concrete ports.

Boot retries what may heal by itself (storage, an invalid configuration) and says in the health endpoint what it waits
for; what cannot heal (a store without conditional writes, a wrong encryption key) ends the process with a sentence.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Coroutine
from typing import Any

from nstance.authority.keyset import Authority
from nstance.authority.operators import Operators
from nstance.clock import AnchoredClock, Rng
from nstance.config import addresses, storage_keys
from nstance.config.addresses import Endpoints, Service
from nstance.config.settings import Settings
from nstance.model.decision import ReasonCode
from nstance.model.ids import ClusterId, ShardId
from nstance.objects import errors, journal, lease, probe
from nstance.objects.observed import ObservedStore
from nstance.objects.open import open_store
from nstance.objects.port import ObjectStore
from nstance.pki import names
from nstance.providers import errors as provider_errors
from nstance.providers.port import Provider, Scope
from nstance.providers.registry import open_provider
from nstance.server import reserved_ports
from nstance.server.api import grpc_ports
from nstance.server.cache.cache import Cache
from nstance.server.config import configuration as configurations
from nstance.server.config.active_config import ActiveConfig
from nstance.server.config.configuration import Configuration, NoConfigurationError
from nstance.server.election import peer_http
from nstance.server.election.context import ElectionContext
from nstance.server.election.elector import Elector
from nstance.server.election.store_latency import TimedStore
from nstance.server.errors import FatalError
from nstance.server.identity.certificate_expiry import CertificateExpiry
from nstance.server.identity.issuer import Issuer, ServerIdentity, server_identity
from nstance.server.identity.tls_contexts import TlsContexts
from nstance.server.identity.trust import Trust
from nstance.server.leader.history import History
from nstance.server.leader.leader import Leader, LeaderParts
from nstance.server.leader.watchdog import Watchdog
from nstance.server.options import Options
from nstance.server.probes import Probes
from nstance.server.state.follower import Follower
from nstance.telemetry import loop_lag
from nstance.telemetry.metrics import CacheCount, Metrics

log = logging.getLogger(__name__)

RETRY_FIRST = 1.0
RETRY_MOST = 60.0
HEALTH = addresses.Address("0.0.0.0", 8990)  # until the configuration is known
EXIT_JITTER_LEAST, EXIT_JITTER_MOST = 10.0, 40.0  # until a configuration says otherwise
SHUTDOWN_SECONDS = 10.0  # the same


class Server:
    def __init__(
        self,
        options: Options,
        *,
        clock: AnchoredClock,
        rng: Rng,
        store: ObjectStore | None = None,
        provider: Provider | None = None,
    ) -> None:
        """`store` and `provider` take the place of those that the options and the configuration name; they are not
        closed here."""
        assert options.shard is not None
        self.options = options
        self.shard: ShardId = options.shard
        self.metrics = Metrics()
        self.unwell: str | None = "starting"
        self.exit_jitter = (EXIT_JITTER_LEAST, EXIT_JITTER_MOST)
        self.elector: Elector | None = None
        self.leader: Leader | None = None
        self.endpoints: Endpoints | None = None
        self._clock = clock
        self._rng = rng
        self._store = store
        self._provider = provider
        self._health: addresses.Address | None = None  # where probes are answered now
        self._stopping = asyncio.Event()
        self._shutdown_seconds = SHUTDOWN_SECONDS
        self._patience: asyncio.Timeout | None = None  # while it runs

    def stop(self) -> None:
        """Orderly: the lease is given back. What takes longer than `shard.shutdown_timeout` is cut short."""
        if self._patience is not None and not self._stopping.is_set():
            self._patience.reschedule(asyncio.get_running_loop().time() + self._shutdown_seconds)
        self._stopping.set()
        if self.elector is not None:
            self.elector.stop()

    async def run(self) -> None:
        """Until stopped. Raises Fatal."""
        patience = asyncio.timeout(None)
        try:
            async with patience:
                self._patience = patience
                try:
                    await self._run()
                finally:
                    self._patience = None
        except TimeoutError:
            if not patience.expired():
                raise
            raise FatalError(
                f"the orderly stop took longer than {self._shutdown_seconds:g} s (shard.shutdown_timeout): cut short"
            ) from None

    async def _run(self) -> None:
        store = ObservedStore(self.open_store(), self.metrics.storage_request)
        probes = Probes(unwell=self._health_problem, metrics=self.metrics)
        try:
            configuration = await self._until_configured(store, probes)
            if configuration is not None:
                async with contextlib.AsyncExitStack() as opened:
                    await self._serve(store, configuration, opened)
        finally:
            await probes.close()
            if self._store is None:
                await store.close()

    def _health_problem(self) -> str | None:
        """Why this server is not well. A damaged journal is nobody's trouble as long as somebody leads."""
        if self.unwell is not None or self.elector is None or self.leader is None:
            return self.unwell
        damage = self.elector.damage or self.leader.parts.follower.damage
        if not damage or self.leader.lead is not None or self.elector.hears_leader:
            return None
        return f"the journal is damaged and nobody can lead: {damage}"

    def open_store(self) -> ObjectStore:
        options = self.options
        if self._store is not None:
            return self._store
        try:
            return open_store(options.storage, bucket=options.bucket, prefix=options.prefix)
        except (errors.StorageError, ValueError) as problem:
            raise FatalError(f"object storage cannot be opened: {problem}") from problem

    # ---- boot

    async def _until_configured(self, store: ObjectStore, probes: Probes) -> Configuration | None:
        """Storage that keeps its word and a configuration that is valid; None if stopped before."""
        wait, probed = RETRY_FIRST, False
        while not self._stopping.is_set():
            try:
                if not probed:
                    await probe.probe(store, f"shard/{self.shard}/", self._rng)
                    probed = True
                configuration = await configurations.read(store, self.shard)
                await self._open_probes(probes, configuration.settings.shard.bind.by_service()[Service.HEALTH])
                return configuration
            except probe.UnsuitableStoreError as problem:
                raise FatalError(str(problem)) from problem
            except errors.PermissionDeniedError as problem:
                self.unwell = f"object storage refuses us: {problem}"
            except NoConfigurationError as problem:
                self.unwell = str(problem)
            except (errors.StorageError, TimeoutError) as problem:
                self.unwell = f"object storage does not answer: {problem or 'timed out'}"
            if self._health is None:
                # Health answers while we wait, on the default port: the configured one is not known yet.
                try:
                    await self._open_probes(probes, HEALTH)
                except FatalError as problem:
                    log.warning("nobody can ask for health yet: %s", problem)
            log.error("cannot start yet: %s", self.unwell, extra={"retry_seconds": round(wait, 1)})
            await self.pause(wait * self._rng.uniform(0.5, 1.0))
            wait = min(RETRY_MOST, wait * 2)
        return None

    async def _open_probes(self, probes: Probes, bind: addresses.Address) -> None:
        """Here, and nowhere else any more."""
        try:
            shifted = bind.shifted(self.options.port_offset)
        except ValueError as problem:
            raise FatalError(f"--port-offset: {problem}") from problem
        if self._health == shifted:
            return
        if self._health is not None:
            await probes.close()
            self._health = None
        try:
            await probes.start(shifted.host, shifted.port)
        except OSError as problem:
            raise FatalError(reserved_ports.taken(Service.HEALTH, shifted, problem)) from problem
        self._health = shifted

    async def pause(self, seconds: float) -> None:
        """Wait, but not longer than until the stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _open_authority(self, trust: Trust) -> Authority:
        """At boot: storage is waited for."""
        while True:
            try:
                return await trust.read()
            except (errors.StorageError, TimeoutError) as problem:
                self.unwell = f"the cluster's CA cannot be read: {problem or 'timed out'}"
                log.error("cannot start yet: %s", self.unwell)
                await self.pause(self._rng.uniform(1.0, 3.0))
                if self._stopping.is_set():
                    raise FatalError("stopped before the CA could be read") from problem

    # ---- serving

    async def _serve(self, store: ObjectStore, configuration: Configuration, opened: contextlib.AsyncExitStack) -> None:
        settings, clock, rng = configuration.settings, self._clock, self._rng
        jitter = settings.shard.error_exit_jitter
        self.exit_jitter = (jitter.min_delay, jitter.max_delay)
        self._shutdown_seconds = settings.shard.shutdown_timeout
        cluster = ClusterId(settings.cluster.id)
        cluster_store = self.cluster_store(store, settings)
        if cluster_store is not store:
            opened.push_async_callback(cluster_store.close)
        trust = self.trust(cluster_store, settings)
        secret_store = trust.secret_store()
        authority = await self._open_authority(trust)
        endpoints = self.endpoints = self._endpoints(settings)
        hosts = [a.host for told in endpoints.advertise.values() for a in told]
        if settings.shard.leader_network is not None:
            hosts += [settings.shard.leader_network.ip, settings.shard.leader_network.ip6]
        who = names.Server(cluster, self.shard, self.options.id)
        identity = server_identity(authority, who, hosts=hosts, clock=clock, rng=rng)
        contexts = TlsContexts(identity, authority.bundle)
        issuer = Issuer(authority, shard=self.shard, clock=clock, rng=rng)
        cache = Cache.open(self.options.cachedir / "db" / "nstance.db", cluster=cluster, shard=self.shard, clock=clock)
        opened.push_async_callback(cache.close)
        self.metrics.count_cache(lambda: CacheCount(on_disk=cache.on_disk, dropped=cache.dropped))
        try:
            provider = self._provider or open_provider(
                settings.shard.infra.provider,
                scope=Scope(cluster=cluster, shard=self.shard),
                options=settings.shard.infra.options,
                cachedir=self.options.cachedir,
                clock=clock,
                server=self.options.id,
            )
        except provider_errors.ProviderError as problem:
            raise FatalError(f"the provider cannot be opened: {problem}") from problem
        if self._provider is None:
            opened.push_async_callback(provider.close)
        timed = TimedStore(store, clock)
        books = journal.Journal(
            timed,
            journal_prefix=storage_keys.journal_prefix(self.shard),
            snapshot_prefix=storage_keys.snapshot_prefix(self.shard),
            clock=clock,
            timeout=lambda: max(journal.TIMEOUT, timed.latency().timeout),
        )
        active_config = ActiveConfig(configuration, store=store, shard=self.shard, clock=clock)
        history = History(cache, self.metrics, clock)

        def leading() -> bool:
            return self.elector is not None and self.elector.term is not None

        follower = Follower(
            books,
            clock,
            leading=leading,
            told=history.keep,
        )
        operators = Operators(
            cluster_store, prefix=settings.cluster.storage.prefix, cluster=cluster, clock=clock, rng=rng
        )
        parts = LeaderParts(
            name=self.shard,
            cluster=cluster,
            store=store,
            active_config=active_config,
            books=books,
            follower=follower,
            provider=provider,
            issuer=issuer,
            secret_store=secret_store,
            advertised=grpc_ports.advertised(endpoints),
            ports=lambda lead: grpc_ports.grpc_ports(
                lead,
                active_config=active_config,
                server=self.options.id,
                store=store,
                events=cache.events,
                endpoints=endpoints,
                context=contexts.grpc,
                cluster=cluster,
                operators=operators,
                clock=clock,
                rng=rng,
            ),
            held=lambda: self.elector.held if self.elector is not None else None,
            wrote=lambda tail: self.elector.wrote(tail) if self.elector is not None else None,
            watch=lambda term, length: Watchdog(term, clock=clock, length=length),
            history=history,
            metrics=self.metrics,
            clock=clock,
            rng=rng,
            cache=cache,
        )
        self.leader = Leader(parts)
        elector = self.elector = self._elector(timed, settings, parts, contexts, identity)
        peers = peer_http.PeerServer(
            accept=elector.accept,
            held=lambda: elector.held,
            context=contexts.peer_server,
            cluster=cluster,
            shard=self.shard,
        )
        expiries = CertificateExpiry(self.metrics, clock, self._alarm)
        for service in grpc_ports.SERVICES:
            await reserved_ports.reserve(service, endpoints.bind[service], opened)
        await self._open_peers(peers)
        opened.push_async_callback(peers.close)
        await cache.flush()
        self.unwell = None
        log.info("ready", extra={"server": self.options.id, "shard": self.shard, "cluster": cluster})
        await self._lead_or_follow(
            elector,
            follower.run(),
            active_config.follow(leading=leading),
            loop_lag.measure(clock, self.metrics.loop_lag),
            trust.run(issuer, contexts, who, hosts=hosts, expiry=expiries),
        )

    async def _lead_or_follow(self, elector: Elector, *beside: Coroutine[Any, Any, None]) -> None:
        """Until stopped. What goes on beside ends only by a bug; the lease is then given back, and the bug ends us."""
        background = [asyncio.create_task(each) for each in beside]
        for task in background:
            task.add_done_callback(lambda _: elector.stop())
        try:
            if self._stopping.is_set():
                elector.stop()
            await elector.run()
            for task in background:
                if task.done():
                    task.result()
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)

    def _elector(
        self, store: TimedStore, settings: Settings, parts: LeaderParts, contexts: TlsContexts, identity: ServerIdentity
    ) -> Elector:
        leader, follower = self.leader, parts.follower
        assert leader is not None
        assert self.endpoints is not None

        async def floor() -> int:
            await follower.read()
            return follower.epoch

        me = lease.Holder(
            server=self.options.id,
            incarnation=f"{self.options.id}.{self._rng.bits(64):016x}",
            addresses=tuple(str(a) for a in self.endpoints.advertise[Service.ELECTION]),
            fingerprint=identity.fingerprint,
        )
        return Elector(
            ElectionContext(
                store=store,
                key=storage_keys.lease(self.shard),
                me=me,
                timings=configurations.timings(settings),
                clock=self._clock,
                rng=self._rng,
                latency=store.latency,
                anchor=self._clock.anchor,
            ),
            dialer=peer_http.HttpDialer(contexts.peer_client, cluster=parts.cluster, shard=self.shard),
            lead=leader.run,
            tail=lambda: follower.tail,
            floor=floor,
            heard_tail=follower.hint,
        )

    def trust(self, cluster_store: ObjectStore, settings: Settings) -> Trust:
        insecure = self.options.insecure_dev
        return Trust(cluster_store, settings, insecure_dev=insecure, clock=self._clock, rng=self._rng)

    def cluster_store(self, store: ObjectStore, settings: Settings) -> ObjectStore:
        told = settings.cluster.storage
        if told.provider is None and not told.bucket:
            return store
        return open_store(
            told.provider or self.options.storage,
            bucket=told.bucket or self.options.bucket,
            region=told.region or None,
            endpoint=told.endpoint or None,
        )

    def _endpoints(self, settings: Settings) -> Endpoints:
        try:
            return addresses.endpoints(
                settings.shard.bind.by_service(),
                settings.shard.advertise.by_service(),
                primary=lambda: self.options.advertise_host or primary_address(),
                port_offset=self.options.port_offset,
            )
        except ValueError as problem:
            raise FatalError(f"--port-offset: {problem}") from problem

    async def _open_peers(self, peers: peer_http.PeerServer) -> None:
        assert self.endpoints is not None
        bind = self.endpoints.bind[Service.ELECTION]
        try:
            await peers.start(bind.host, bind.port)
        except OSError as problem:
            raise FatalError(reserved_ports.taken(Service.ELECTION, bind, problem)) from problem

    def _alarm(self, message: str) -> bool:
        lead = self.leader.lead if self.leader is not None else None
        if lead is not None:
            lead.shard.notes.announce(ReasonCode.SECURITY, message)
        return lead is not None


def primary_address() -> str:
    """The address that this machine would use to reach others. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
        try:
            probe_socket.connect(("192.0.2.1", 9))
            return str(probe_socket.getsockname()[0])
        except OSError:
            return "127.0.0.1"
