"""The compose file: its schema, and what a schema cannot see."""

import ipaddress
import json
import re
from importlib import resources

import jsonschema

from tree import CLEAN_UP, seconds, size

CHECKS = {}
COMPOSE = "deploy/compose.yaml"


def check(function):
    CHECKS[function.__name__] = function
    return function


def services(tree):
    return tree.yaml(COMPOSE)["services"]


def role(service):
    """`coordinator`, `worker`, or none for what is not Wharf."""
    return service["command"][0] if service.get("image", "").startswith("wharf:") else None


def coordinators(tree):
    return {name: service for name, service in services(tree).items() if role(service) == "coordinator"}


@check
def compose_schema(tree):
    """compose.yaml against the compose specification"""
    schema = resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(schema.read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    for error in validator.iter_errors(tree.yaml(COMPOSE)):
        yield f"{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"


@check
def compose_parts(tree):
    """three coordinators, one nginx, one PostgreSQL and a worker that can be scaled"""
    found = services(tree)
    if len(coordinators(tree)) != 3:
        yield f"coordinators: {sorted(coordinators(tree))}"
    if set(found) - set(coordinators(tree)) != {"nginx", "postgres", "worker"}:
        yield f"services: {sorted(found)}"
    for key in ("container_name", "hostname", "ports"):
        if key in found["worker"]:
            yield f"worker has {key}, so there can be only one"


@check
def compose_networks(tree):
    """only coordinators reach the store, only nginx publishes a port, on loopback, and the networks front and store have no way out"""
    compose = tree.yaml(COMPOSE)
    members = {}
    for name, service in compose["services"].items():
        for network in service.get("networks", ["default"]):
            members.setdefault(network, set()).add(name)
        if service.get("network_mode"):
            yield f"{name} has network_mode"
        for port in service.get("ports", []):
            if name != "nginx" or not str(port).startswith("127.0.0.1:"):
                yield f"{name} publishes {port}"
    brains = set(coordinators(tree))
    wanted = {"clients": {"nginx"}, "front": brains | {"nginx"}, "store": brains | {"postgres"}, "grid": brains | {"worker"}}
    if members != wanted:
        yield f"who is on which network: {({key: sorted(value) for key, value in members.items()})}"
    for network in ("front", "store"):
        if not (compose["networks"][network] or {}).get("internal"):
            yield f"{network} must be internal"


@check
def compose_addresses(tree):
    """nginx knows exactly the coordinators, they trust exactly nginx, workers call a name that exists and is allowed"""
    compose = tree.yaml(COMPOSE)
    found = compose["services"]
    nginx = found["nginx"]
    subnet = ipaddress.ip_network(compose["networks"]["front"]["ipam"]["config"][0]["subnet"])
    own = {name: service["networks"]["front"]["ipv4_address"] for name, service in coordinators(tree).items()}
    upstream = re.findall(r"server (\S+):(\d+) max_fails=1 fail_timeout=2s;", nginx["environment"]["UPSTREAM_SERVERS"])
    if sorted(address for address, _ in upstream) != sorted(own.values()) or len(set(own.values())) != len(own):
        yield f"nginx has {upstream}, the coordinators are {own}"
    for address in [*own.values(), nginx["networks"]["front"]["ipv4_address"]]:
        if ipaddress.ip_address(address) not in subnet:
            yield f"{address} is not in {subnet}"
    call = re.fullmatch(r"http://([a-z-]+):(\d+)", found["worker"]["environment"]["WHARF_COORDINATOR"])
    for name, service in coordinators(tree).items():
        environment = service["environment"]
        port = environment["WHARF_LISTEN"].rpartition(":")[2]
        if {port} != {port for _, port in upstream} | {call[2], service["healthcheck"]["test"][-1]}:
            yield f"{name} listens on {port}; nginx, workers or the health check use another port"
        if environment["WHARF_TRUSTED_PROXY"] != nginx["networks"]["front"]["ipv4_address"] + "/32":
            yield f"{name} trusts {environment['WHARF_TRUSTED_PROXY']}"
        if call[1] not in service["networks"]["grid"]["aliases"] or call[1] != environment["WHARF_ALLOW_HOST"]:
            yield f"{name}: workers call {call[1]!r}, which must be its alias and its WHARF_ALLOW_HOST"
    worker = found["worker"]
    if worker["environment"]["WHARF_GATEWAY"].rpartition(":")[2] != worker["healthcheck"]["test"][-1]:
        yield "the worker's health check asks another port than its gateway"
    if not nginx["ports"][0].endswith(":" + nginx["environment"]["LISTEN"]):
        yield "nginx listens on another port than the published one"
    prefix = nginx["environment"]["NGINX_ENVSUBST_OUTPUT_DIR"]
    if nginx["command"][-4:] != ["-p", prefix, "-c", "nginx.conf"] or not any(mount.startswith(prefix + ":") for mount in nginx["tmpfs"]):
        yield f"nginx's template goes to {prefix}, which must be its prefix and can be written"
    mount = nginx["volumes"][0].split(":")
    if not tree.exists("deploy/" + mount[0].removeprefix("./")) or not mount[1].startswith("/etc/nginx/templates/"):
        yield f"nginx's template: {mount}"
    used = {name for name in re.findall(r"\$\{([A-Z_]+)\}", tree.text("deploy/nginx.conf.template"))}
    if missing := used - set(nginx["environment"]):
        yield f"nginx's template needs {sorted(missing)}"
    if (allowed := set(re.findall(r"[A-Z_]+", nginx["environment"]["NGINX_ENVSUBST_FILTER"]))) != used:
        yield f"envsubst may replace {sorted(allowed)}, the template has {sorted(used)}"


@check
def compose_timing(tree):
    """stop_grace_period is longer than drain and clean-up; health checks have Kubernetes' arithmetic"""
    need = tree.span("drain_timeout") + CLEAN_UP
    for name, service in services(tree).items():
        grace = seconds(service.get("stop_grace_period", "10s"))
        if grace <= need:
            yield f"{name}: stop_grace_period {grace} must exceed {need} (drain and clean-up)"
        if role(service):
            health = service["healthcheck"]
            notice = seconds(health["interval"]) * health["retries"] + seconds(health["timeout"])
            if notice + tree.span("heartbeat_interval") > tree.span("liveness_ttl"):
                yield f"{name}: its health check takes {notice} s to notice"
    wait = seconds(re.search(r"worker_shutdown_timeout (\w+);", tree.text("deploy/nginx.conf.template"))[1])
    if not need < wait < seconds(services(tree)["nginx"]["stop_grace_period"]):
        yield f"nginx waits {wait} s for relays: longer than {need}, shorter than its stop_grace_period"


@check
def compose_hardening(tree):
    """no capabilities, no new privileges, read-only, the worker with the seccomp profile, enough /dev/shm and the sandbox on"""
    for name, service in services(tree).items():
        options = service.get("security_opt", [])
        if "no-new-privileges:true" not in options:
            yield f"{name}: no-new-privileges is missing"
        if service.get("privileged") or service.get("cap_add") or any("unconfined" in option for option in options):
            yield f"{name} has more rights than it needs"
        # PostgreSQL's image starts as root and changes to its user.
        if name != "postgres" and not (service.get("read_only") and service.get("cap_drop") == ["ALL"]):
            yield f"{name} must be read_only and drop ALL capabilities"
        if not re.fullmatch(r"[a-z]+:\d[a-z0-9.-]*", service["image"]):
            yield f"{name}: image {service['image']}: want a plain name with a version"
    worker = services(tree)["worker"]
    profiles = [option.partition("=")[2] for option in worker["security_opt"] if option.startswith("seccomp=")]
    if len(profiles) != 1 or not tree.exists("deploy/" + profiles[0].removeprefix("./")):
        yield f"worker: seccomp profile {profiles}"
    if size(worker.get("shm_size", "64mb")) < 512 * 1024**2:
        yield "worker: shm_size is below 512 MiB, where pages crash"
    if worker["environment"].get("WHARF_SANDBOX") != "on":
        yield "worker: WHARF_SANDBOX must be on"
    if "WHARF_STORE" in worker["environment"]:
        yield "worker: it must not know the store"
