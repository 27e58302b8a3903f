"""nstance-dev-k8s: a Kubernetes API server over JSON files, for development on one machine."""

import asyncio
import contextlib
import pathlib
import sys
from collections.abc import AsyncIterator, Sequence

from aiohttp import web

from nstance import clock as clocks
from nstance.dev import loopback, signals
from nstance.dev.k8s import file_watch
from nstance.dev.k8s.files import Files
from nstance.dev.k8s.service import Service
from nstance.kube.api import server
from nstance.telemetry import logs

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: dev-k8s
clusters: [{{name: dev-k8s, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: dev-k8s, user: {{}}}}]
contexts: [{{name: dev-k8s, context: {{cluster: dev-k8s, user: dev-k8s, namespace: default}}}}]
"""

EXAMPLES = """\
examples:
  nstance-dev-k8s                                       files in temp/dev-k8s, on port 6443
  nstance-dev-k8s --dir /tmp/cluster --port 7443
  nstance-dev-k8s --kubeconfig temp/kubeconfig          also write a kubeconfig for this server

use it:
  kubectl --server http://127.0.0.1:6443 get nodes
  $EDITOR temp/dev-k8s/machinepools/default/nstance-test.json
"""


@contextlib.asynccontextmanager
async def serving(folder: pathlib.Path, *, port: int, window: int = server.WATCH_WINDOW) -> AsyncIterator[int]:
    """Serves until the block ends and yields the port; 0: a free one. Raises OSError if it is in use."""
    clock = clocks.SystemClock()
    with loopback.listening(port) as sockets:  # first: a second server must not touch the files
        files = Files(folder, clock, clocks.SystemRng(), window=window)
        service = Service(files, clock)
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(file_watch.watch_files(files, stopping))
            async with loopback.serving(web.Server(service.handle), sockets) as chosen:
                try:
                    yield chosen
                finally:
                    stopping.set()
                    service.streams.end()


def main(argv: Sequence[str] | None = None) -> None:
    description = "A Kubernetes API server over JSON files, for development. Plain HTTP, on loopback only."
    parser = loopback.parser("nstance-dev-k8s", description, examples=EXAMPLES, port=6443, folder="temp/dev-k8s")
    parser.add_argument("--kubeconfig", type=pathlib.Path, metavar="FILE", help="write a kubeconfig for this server")
    options = parser.parse_args(argv)
    logs.configure(json=False, debug=options.verbose, program="nstance-dev-k8s")
    try:
        asyncio.run(_run(options.dir, port=options.port, kubeconfig=options.kubeconfig))
    except OSError as problem:
        where = f"port {options.port} or folder {options.dir} cannot be used ({problem.strerror or problem})"
        sys.exit(f"nstance-dev-k8s: {where}; stop the other process, or choose others with --port and --dir")


async def _run(folder: pathlib.Path, *, port: int, kubeconfig: pathlib.Path | None) -> None:
    stop = signals.stop_event()
    async with serving(folder, port=port) as chosen:
        if kubeconfig is not None:
            _write_kubeconfig(kubeconfig, chosen)
        sys.stdout.write(f"dev-k8s listens on http://localhost:{chosen}, objects in {folder}\n")
        sys.stdout.flush()
        await stop.wait()


def _write_kubeconfig(path: pathlib.Path, port: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(KUBECONFIG.format(port=port))


if __name__ == "__main__":
    main()
