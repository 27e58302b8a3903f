"""A real Kubernetes API server on loopback, for `make test-kube`: kube-apiserver, the controllers that matter here, etcd.

    python tests/support/real_kube.py pytest tests/contracts/test_kube_contract.py

builds what is missing (Go builds kube-apiserver, kube-controller-manager and Cluster API's controllers from their published
modules, half an hour on two cores, kept in the user's cache directory; etcd comes from Debian's package, unpacked
there), starts all but Cluster API (`cluster_api` does, for tests that want it), applies the CRDs of Cluster API and ours,
runs the command with NSTANCE_TEST_KUBECONFIG set, and ends what it started. The controller manager runs only garbage
collection, disruption budgets, namespaces and service accounts: no scheduler and no kubelet move anything behind a test's
back.
"""

import base64
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KUBERNETES = "1.34.4"
CLUSTER_API = "1.13.6"
PROGRAMS = ("kube-apiserver", "kube-controller-manager")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nstance" / f"kubernetes-{KUBERNETES}"
ROOT = Path(__file__).resolve().parents[2]
TOKEN = "loopback-only-admin-token"
CLUSTER_API_PROGRAM = CACHE / f"cluster-api-{CLUSTER_API}"
PROGRESS_SECONDS = 15.0
CLUSTER_API_VARIABLE = "NSTANCE_TEST_CLUSTER_API"  # the program, or why its controllers cannot be run


class Missing(Exception):
    """A program cannot be had on this machine: a reason to skip."""


class Failed(Exception):
    """What is there did not work: a reason to fail."""


def print_progress(text: str) -> None:
    print(f"test-kube: {text}", file=sys.stderr, flush=True)


def run(*command: str, cwd: Path | None = None, given: str = "") -> str:
    done = subprocess.run(command, cwd=cwd, text=True, capture_output=True, check=False, input=given)
    if done.returncode:
        raise Failed(f"'{' '.join(command)}' failed: {(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout


def build(target: Path, package: str, cwd: Path, flags: str = "-s -w") -> None:
    """Compiles a program; says every now and then how many packages are done."""
    print_progress(f"building {target.name} into {target.parent} (once; ten minutes or more on two cores)")
    started, done, reported, tail = time.monotonic(), 0, time.monotonic(), []
    command = ("go", "build", "-v", "-trimpath", "-ldflags", flags, "-o", f"{target}.new", package)
    with subprocess.Popen(command, cwd=cwd, text=True, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:  # the name of a package when it is compiled, or an error
            done, tail = done + 1, [*tail[-20:], line]
            if time.monotonic() - reported > PROGRESS_SECONDS:
                reported = time.monotonic()
                print_progress(f"building {target.name}: {done} packages after {reported - started:.0f} s")
    if process.returncode:
        raise Failed(f"'{' '.join(command)}' failed: {''.join(tail).strip()[-600:]}")
    Path(f"{target}.new").rename(target)


def module(name: str, version: str) -> Path:
    """The directory of a Go module, downloaded."""
    return Path(
        json.loads(run("go", "mod", "download", "-json", f"{name}@v{version}", cwd=Path(tempfile.gettempdir())))["Dir"]
    )


def build_kubernetes() -> None:
    if all((CACHE / program).exists() for program in PROGRAMS):
        return
    source = module("k8s.io/kubernetes", KUBERNETES)
    staging = [line.split()[0] for line in (source / "go.mod").read_text().splitlines() if "=> ./staging/" in line]
    go = next(line.split()[1] for line in (source / "go.mod").read_text().splitlines() if line.startswith("go "))
    work = CACHE / "build"
    work.mkdir(parents=True, exist_ok=True)
    # Its own go.mod points at directories that the published module does not contain: the same versions are published alone.
    staged = "0" + KUBERNETES[1:]
    replaced = "\n".join(f"replace {name} => {name} v{staged}" for name in staging)
    (work / "go.mod").write_text(
        f"module nstance.dev/test-kube\n\ngo {go}\n\nrequire k8s.io/kubernetes v{KUBERNETES}\n\n{replaced}\n"
    )
    imports = "\n".join(f'import _ "k8s.io/kubernetes/cmd/{program}"' for program in PROGRAMS)
    (work / "tools.go").write_text(f"//go:build tools\n\npackage tools\n\n{imports}\n")
    print_progress("resolving the modules of Kubernetes")
    run("go", "mod", "tidy", cwd=work)
    stamp = "k8s.io/component-base/version"
    major, minor, _ = KUBERNETES.split(".")
    flags = f"-s -w -X {stamp}.gitVersion=v{KUBERNETES} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}"
    for program in PROGRAMS:
        build(CACHE / program, f"k8s.io/kubernetes/cmd/{program}", work, flags)


def cluster_api_source() -> Path:
    return module("sigs.k8s.io/cluster-api", CLUSTER_API)


def _build_cluster_api() -> None:
    """The manager of its core provider, with controllers and webhooks."""
    if CLUSTER_API_PROGRAM.exists():
        return
    build(CLUSTER_API_PROGRAM, ".", cluster_api_source())


def _etcd() -> str:
    if found := shutil.which("etcd"):
        return found
    program = CACHE / "etcd" / "usr" / "bin" / "etcd"
    if not program.exists():
        if not shutil.which("apt-get"):
            raise Missing("etcd is missing: install it (Debian: apt-get install etcd-server)")
        print_progress("unpacking etcd from Debian's package")
        (CACHE / "etcd").mkdir(parents=True, exist_ok=True)
        run("apt-get", "download", "etcd-server", cwd=CACHE / "etcd")
        package = next((CACHE / "etcd").glob("etcd-server_*.deb"))
        run("dpkg", "-x", str(package), str(CACHE / "etcd"))
    return str(program)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _wait_ready(url: str, certificate: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + 120
    while True:
        try:
            context = ssl.create_default_context(cafile=str(certificate))
            request = urllib.request.Request(f"{url}/readyz", headers={"Authorization": f"Bearer {TOKEN}"})
            with urllib.request.urlopen(request, timeout=5, context=context) as answer:
                if answer.status == 200:
                    return
        except (OSError, urllib.error.HTTPError):
            pass
        if process.poll() is not None or time.monotonic() > give_up:
            raise Failed(f"kube-apiserver did not become ready; its log ends with:\n{log.read_text()[-1500:]}")
        time.sleep(0.2)


def _kubeconfig(url: str, certificate: bytes) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
            "clusters": [
                {
                    "name": "test",
                    "cluster": {"server": url, "certificate-authority-data": base64.b64encode(certificate).decode()},
                }
            ],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
        }
    )


class Programs:
    """etcd, kube-apiserver and kube-controller-manager, each with its log. Killed or stopped ones can be started again: ports,
    data and certificates stay."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.kubeconfig = work / "kubeconfig"
        self._etcd_port, self._peer_port, self._port = free_ports(3)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def prepare(self) -> None:
        run("openssl", "genrsa", "-out", str(self.work / "accounts.key"), "2048")
        (self.work / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')

    def start_etcd(self) -> None:
        clients, peers = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        self._start(
            "etcd",
            _etcd(),
            f"--data-dir={self.work / 'etcd'}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",
        )

    def start_server(self) -> None:
        self._start(
            "kube-apiserver",
            str(CACHE / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--secure-port={self._port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--cert-dir={self.work / 'certificates'}",
            f"--token-auth-file={self.work / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            f"--service-account-key-file={self.work / 'accounts.key'}",
            f"--service-account-signing-key-file={self.work / 'accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            # Without a scheduler and kubelets the volume that this plugin adds to each pod is never mounted.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--enable-admission-plugins=NodeRestriction",  # what a kubelet may write, as in every usual cluster
            "--endpoint-reconciler-type=none",
        )

    def wait_ready(self) -> None:
        """Until kube-apiserver answers; its kubeconfig is there then."""
        certificate = self.work / "certificates" / "apiserver.crt"
        log = self.work / "kube-apiserver.log"
        _wait_ready(self.url, certificate, self._running["kube-apiserver"], log)
        self.kubeconfig.write_text(_kubeconfig(self.url, certificate.read_bytes()))

    def start_controllers(self) -> None:
        self._start(
            "kube-controller-manager",
            str(CACHE / "kube-controller-manager"),
            f"--kubeconfig={self.kubeconfig}",
            "--controllers=garbage-collector-controller,disruption-controller,namespace-controller,serviceaccount-controller",
            "--leader-elect=false",
            "--secure-port=0",
        )

    def send(self, program: str, number: signal.Signals) -> None:
        self._running[program].send_signal(number)

    def kill(self, program: str) -> None:
        process = self._running.pop(program)
        process.kill()
        process.wait()

    def end(self) -> None:
        for process in reversed(self._running.values()):
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in reversed(self._running.values()):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, *command: str) -> None:
        with (self.work / f"{name}.log").open("ab") as file:
            self._running[name] = subprocess.Popen(
                command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
            )


@contextmanager
def started() -> Iterator[Programs]:
    """With no custom resources. The programs are built."""
    with tempfile.TemporaryDirectory(prefix="nstance-kube-") as name:
        programs = Programs(Path(name))
        try:
            programs.prepare()
            programs.start_etcd()
            programs.start_server()
            programs.wait_ready()
            programs.start_controllers()
            yield programs
        finally:
            programs.end()


@contextmanager
def running() -> Iterator[Programs]:
    """With the CRDs of Cluster API and ours. The programs are built."""
    with started() as programs:
        apply_definitions(programs.kubeconfig, ROOT / "config" / "crd")
        yield programs


def apply_definitions(kubeconfig: Path, ours: Path) -> None:
    """The CRDs of Cluster API, and those of a kustomization."""
    theirs = cluster_api_source() / "config" / "crd" / "bases"
    kubectl(kubeconfig, "apply", "--server-side", "-f", str(theirs))
    kubectl(kubeconfig, "apply", "--server-side", "-k", str(ours))
    kubectl(kubeconfig, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")


def kubectl(kubeconfig: Path, *arguments: str, given: str = "") -> str:
    return run("kubectl", f"--kubeconfig={kubeconfig}", *arguments, given=given)


def find_missing() -> list[str]:
    """Everything that is missing, at once: the builds take long, and nobody wants to learn of one thing after another."""
    missing = [f"{name}: install it" for name in ("kubectl", "openssl") if not shutil.which(name)]
    if not shutil.which("go"):
        missing.append("Go: it fetches Cluster API's CRDs and builds what is not in the cache yet")
    if not shutil.which("etcd") and not (CACHE / "etcd/usr/bin/etcd").exists() and not shutil.which("apt-get"):
        missing.append("etcd: install it (Debian: apt-get install etcd-server)")
    return missing


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    environment: dict[str, str] = {}
    is_ci = os.environ.get("CI", "") not in ("", "0", "false")
    if missing := find_missing():  # a skipped test that looks like a passed one is worse than a failure
        print_progress(f"{'failed' if is_ci else 'skipped'}: missing are {'; '.join(missing)}")
        return 1 if is_ci else 0
    try:
        build_kubernetes()
        try:
            _build_cluster_api()
            environment[CLUSTER_API_VARIABLE] = str(CLUSTER_API_PROGRAM)
        except Failed as problem:
            if is_ci:
                raise
            print_progress(f"tests with Cluster API's controllers are skipped: {problem}")
            environment[CLUSTER_API_VARIABLE] = str(problem)
        with running() as programs:
            print_progress(f"kube-apiserver {KUBERNETES} is ready")
            environment |= dict.fromkeys(("NSTANCE_TEST_KUBECONFIG", "KUBECONFIG"), str(programs.kubeconfig))
            return subprocess.call(sys.argv[1:], env=os.environ | environment)
    except Missing as problem:
        print_progress(f"{'failed' if is_ci else 'skipped'}: {problem}")
        return 1 if is_ci else 0
    except Failed as failed:
        print_progress(f"failed: {failed}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
