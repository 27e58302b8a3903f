"""`helm test`: fails unless an HTTP server answers at every address. The webhook refuses a GET, but it answers."""

import ssl
import sys
import urllib.error
import urllib.request

TIMEOUT_SECONDS = 10

anyone = ssl.create_default_context()
anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE  # only the API server knows this CA
for address in sys.argv[1:]:
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS, context=anyone) as answer:
            status, body = answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        status, body = refusal.code, ""
    except OSError as problem:
        sys.exit(f"{address}: {problem}")
    if status >= 500 or (address.endswith("/metrics") and "nstance_operator_" not in body):
        sys.exit(f"{address}: unexpected answer {status}")
    sys.stdout.write(f"{address}: answers\n")
