"""URLs that let somebody without credentials read one object for a while (V4 signatures of Cloud Storage).

The key of a service account signs here. Without one, Google signs for the VM's own account, which needs the permission
`iam.serviceAccounts.signBlob` on itself.
"""

import base64
import binascii
import hashlib
import time
import urllib.parse
from collections.abc import Awaitable, Callable

ALGORITHM = "GOOG4-RSA-SHA256"

Sign = Callable[[bytes], Awaitable[bytes]]


async def signed_url(endpoint: str, path: str, *, account: str, sign: Sign, now: float, seconds: float) -> str:
    """For a GET. `path` is quoted: the bucket and the object."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    scope = f"{moment[:8]}/auto/storage/goog4_request"
    query = {
        "X-Goog-Algorithm": ALGORITHM,
        "X-Goog-Credential": f"{account}/{scope}",
        "X-Goog-Date": moment,
        "X-Goog-Expires": str(int(seconds)),
        "X-Goog-SignedHeaders": "host",
    }
    encoded = urllib.parse.urlencode(sorted(query.items()), quote_via=urllib.parse.quote, safe="")
    host = urllib.parse.urlsplit(endpoint).netloc
    canonical = "\n".join(("GET", path, encoded, f"host:{host}", "", "host", "UNSIGNED-PAYLOAD"))
    text = "\n".join((ALGORITHM, moment, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    signature = binascii.hexlify(await sign(text.encode())).decode()
    return f"{endpoint}{path}?{encoded}&X-Goog-Signature={signature}"


def signed_blob(answer: object) -> bytes:
    """From the answer of signBlob. Raises ValueError."""
    found = answer.get("signedBlob") if isinstance(answer, dict) else None
    return base64.b64decode(str(found or ""), validate=True)
