"""A client of the HTTP API with nothing but the standard library: groups, a plan, and events as they happen.

    python3 examples/http_client.py http://127.0.0.1:8080 web

The token is read from NSTANCE_ADMIN_TOKEN. With --follow it continues with new events until Ctrl-C.
"""

import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

TIMEOUT_SECONDS = 30.0


class Nstance:
    def __init__(self, base: str, token: str = "") -> None:
        self._base = base.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Raises RuntimeError with the detail of the problem."""
        with self._open(method, path, body, query, {"Accept": "application/json"}) as answer:
            return json.load(answer)

    def instances(self, **query: Any) -> Iterator[dict[str, Any]]:
        """All of them, page by page."""
        while True:
            page = self.call("GET", "/v1/instances", **query)
            yield from page["instances"]
            if "next" not in page:
                return
            query["cursor"] = page["next"]

    def follow(self, **query: Any) -> Iterator[dict[str, Any]]:
        """Events as they happen; after a lost connection it continues where it was."""
        position = ""
        while True:
            headers = {"Accept": "text/event-stream", **({"Last-Event-ID": position} if position else {})}
            try:
                with self._open("GET", "/v1/events", None, query, headers) as stream:
                    kind = ""
                    for raw in stream:
                        name, _, value = raw.decode().rstrip("\n").partition(": ")
                        if name == "id":
                            position = value
                        elif name == "event":
                            kind = value
                        elif name == "data" and not kind:
                            yield json.loads(value)
                        elif not name:
                            kind = ""
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                pass  # it reconnects

    def _open(self, method: str, path: str, body: Any, query: dict[str, Any], headers: dict[str, str]) -> Any:
        url = f"{self._base}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        data = json.dumps(body).encode() if body is not None else None
        content = {"Content-Type": "application/json"} if data is not None else {}
        request = urllib.request.Request(url, data, {**self._headers, **headers, **content}, method=method)
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            problem = json.load(error)
            raise RuntimeError(f"{method} {path}: {problem['detail']}") from error


def main() -> None:
    base, group = sys.argv[1], sys.argv[2]
    nstance = Nstance(base, os.environ.get("NSTANCE_ADMIN_TOKEN", ""))
    for each in nstance.call("GET", "/v1/groups")["groups"]:
        print(f"{each['shard']}/{each['group']}: {each['ready_size']} of {each['size']} ready")
    print(f"{sum(1 for _ in nstance.instances(group=group))} instances of {group}")
    shard = nstance.call("GET", f"/v1/groups/{group}")["groups"][0]
    more = {"size": shard["size"] + 1}
    plan = nstance.call("POST", f"/v1/groups/{group}/scale", more, shard=shard["shard"], dry_run="true")
    for step in plan["plan"]:
        print(f"one more would: {step['action']}, {step['reason']}: {step['message']}")
    if "--follow" in sys.argv:
        for event in nstance.follow(group=group):
            print(f"{event['time']} {event['reason']}: {event['message']}", flush=True)


if __name__ == "__main__":
    main()
