"""Where AWS's services answer: by region, or where the usual variables say."""

from collections.abc import Mapping

# Regions outside the commercial partition, by the beginning of their names.
_SUFFIXES = {
    "cn-": "amazonaws.com.cn",
    "eusc-": "amazonaws.eu",
    "us-iso-": "c2s.ic.gov",
    "us-isob-": "sc2s.sgov.gov",
    "us-isof-": "csp.hci.ic.gov",
    "eu-isoe-": "cloud.adc-e.uk",
}


def endpoint(service: str, region: str, *, configured: str = "", environment: Mapping[str, str]) -> str:
    """`configured` (the configuration's own) wins, then `AWS_ENDPOINT_URL_<SERVICE>`, then `AWS_ENDPOINT_URL`."""
    specific = environment.get(f"AWS_ENDPOINT_URL_{_VARIABLE.get(service, service).upper()}", "")
    general = environment.get("AWS_ENDPOINT_URL", "")
    if environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        specific = general = ""
    if found := configured or specific or general:
        return found.rstrip("/")
    suffix = next((suffix for start, suffix in _SUFFIXES.items() if region.startswith(start)), "amazonaws.com")
    return f"https://{service}.{region}.{suffix}"


_VARIABLE = {"elasticloadbalancing": "elastic_load_balancing_v2", "secretsmanager": "secrets_manager"}
