"""The Kubernetes manifests: kustomize, the API's schemas, and what schemas cannot see."""

import functools
import ipaddress
import re

import jsonschema
import kubernetes_validate
from kubernetes_validate import utils as kubernetes_schemas

from tree import (CLEAN_UP, ENDPOINTS, build, containers, matches, pod, render, seconds, size, title, variables)

CHECKS = {}
BASE = "deploy/kubernetes/base"
EXAMPLE = "deploy/kubernetes/overlays/example"
KEDA = "deploy/kubernetes/components/keda"
# The oldest that the guide names, and the newest that the schemas know.
VERSIONS = ["1.30", "1.37"]
PRIVATE = ["10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"]
PRIVATE6 = ["64:ff9b::/96", "fc00::/7", "fe80::/10"]
COORDINATOR = {"app.kubernetes.io/name": "wharf", "app.kubernetes.io/component": "coordinator"}
WORKER = {"app.kubernetes.io/name": "wharf", "app.kubernetes.io/component": "worker"}

# No package brings KEDA's schema; this is the part in use, closed, so that a slip of the pen is seen.
SCALED_OBJECT = {
    "type": "object", "additionalProperties": False, "required": ["scaleTargetRef", "minReplicaCount", "maxReplicaCount", "triggers"],
    "properties": {
        "scaleTargetRef": {"type": "object", "additionalProperties": False, "required": ["name"],
                           "properties": {key: {"type": "string"} for key in ("apiVersion", "kind", "name")}},
        "pollingInterval": {"type": "integer", "minimum": 1},
        "minReplicaCount": {"type": "integer", "minimum": 0},
        "maxReplicaCount": {"type": "integer", "minimum": 1},
        "fallback": {"type": "object", "additionalProperties": False, "required": ["failureThreshold", "replicas"], "properties": {
            "failureThreshold": {"type": "integer"}, "replicas": {"type": "integer"},
            "behavior": {"enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]}}},
        "advanced": {"type": "object", "additionalProperties": False, "properties": {
            "horizontalPodAutoscalerConfig": {"type": "object", "additionalProperties": False,
                                              "properties": {"behavior": {"type": "object"}}}}},
        "triggers": {"type": "array", "minItems": 1, "items": {
            "type": "object", "additionalProperties": False, "required": ["type", "metadata"], "properties": {
                "type": {"const": "prometheus"}, "metricType": {"enum": ["AverageValue", "Value"]},
                "metadata": {"type": "object", "additionalProperties": {"type": "string"},
                             "required": ["serverAddress", "query", "threshold"]}}}},
    },
}


def check(function):
    CHECKS[function.__name__] = function
    return function


def example(tree):
    return render(tree, EXAMPLE)[0]


def with_keda(tree):
    problems = []
    return build(tree, KEDA, render(tree, EXAMPLE)[0], problems), problems


def of(objects, *kinds):
    return [thing for thing in objects if thing["kind"] in kinds]


def named(objects, kind, name):
    return next(thing for thing in objects if thing["kind"] == kind and thing["metadata"]["name"] == name)


def pods(objects):
    return [(title(thing), *pod(thing)) for thing in objects if pod(thing)]


def selected(selector, objects):
    return [entry for entry in pods(objects) if matches(selector, entry[1])]


@check
def kustomize_files(tree):
    """every file that a kustomization lists exists, every file is listed, every patch has one target and changes something"""
    _, problems = render(tree, EXAMPLE)
    yield from problems
    yield from with_keda(tree)[1]
    listed = set()
    for name in [file for file in tree.files("deploy/kubernetes") if file.endswith("kustomization.yaml")]:
        folder, kustomization = name.rpartition("/")[0], tree.yaml(name)
        patches = [patch["path"] for patch in kustomization.get("patches", [])]
        listed |= {f"{folder}/{entry}" for entry in kustomization.get("resources", []) + patches}
        listed.add(name)
    for file in tree.files("deploy/kubernetes"):
        if file not in listed and "/metrics/" not in file:
            yield f"{file} is in no kustomization"
    keys = [(thing["kind"], thing["metadata"]["name"]) for thing in example(tree)]
    yield from (f"{key} exists twice" for key in set(keys) if keys.count(key) > 1)


@check
def kubernetes_schema(tree):
    """every object of base and example against the API schemas of the oldest and the newest Kubernetes, unknown fields refused"""
    kubernetes_schemas.schema_contents = cached_schema
    for folder in (BASE, EXAMPLE):
        for thing in render(tree, folder)[0]:
            for version in VERSIONS:
                try:
                    kubernetes_validate.validate(thing, version, strict=True)
                except kubernetes_validate.ValidationError as error:
                    yield f"{title(thing)}, {version}: {'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"
                except kubernetes_validate.SchemaNotFoundError as error:
                    yield f"{title(thing)}: {error.message}"


@functools.cache
def original_schema(filename, version):
    return ORIGINAL(filename, version)


ORIGINAL = kubernetes_schemas.schema_contents


def cached_schema(filename, version):
    return original_schema(filename, version)


@check
def keda_schema(tree):
    """KEDA's object: its fields, an existing target, the metric's maximum, and no second autoscaler beside it"""
    objects, _ = with_keda(tree)
    scaled = named(objects, "ScaledObject", "wharf-worker")
    for error in jsonschema.Draft202012Validator(SCALED_OBJECT).iter_errors(scaled["spec"]):
        yield f"{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"
    spec = scaled["spec"]
    if not [thing for thing in of(objects, spec["scaleTargetRef"]["kind"]) if thing["metadata"]["name"] == spec["scaleTargetRef"]["name"]]:
        yield f"its target {spec['scaleTargetRef']['name']} does not exist"
    if any(hpa["spec"]["scaleTargetRef"]["name"] == spec["scaleTargetRef"]["name"] for hpa in of(objects, "HorizontalPodAutoscaler")):
        yield "the HorizontalPodAutoscaler of the same Deployment is still there"
    trigger = spec["triggers"][0]
    if not re.fullmatch(r'max\(wharf_desired_workers\{namespace="wharf",pool="default"\}\)', trigger["metadata"]["query"]):
        yield f"the query must be the maximum of the metric: {trigger['metadata']['query']}"
    if (trigger.get("metricType"), trigger["metadata"]["threshold"]) != ("AverageValue", "1"):
        yield "want AverageValue and a threshold of 1: the metric is a number of workers"
    base = named(render(tree, BASE)[0], "HorizontalPodAutoscaler", "wharf-worker")["spec"]
    down = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    if down != base["behavior"]["scaleDown"] or (spec["minReplicaCount"], spec["maxReplicaCount"]) != (base["minReplicas"], base["maxReplicas"]):
        yield "its bounds and its way down are not those of base/scaling.yaml"


@check
def kubernetes_selectors(tree):
    """Services, Deployments, budgets, spreads and affinities select pods that exist, and those that they mean"""
    objects = example(tree)
    for thing in of(objects, "Deployment", "StatefulSet"):
        labels, spec = pod(thing)
        if not matches(thing["spec"]["selector"], labels):
            yield f"{title(thing)} does not select its own pods"
        inner = [term["podAffinityTerm"]["labelSelector"] for term in
                 spec.get("affinity", {}).get("podAntiAffinity", {}).get("preferredDuringSchedulingIgnoredDuringExecution", [])]
        inner += [spread["labelSelector"] for spread in spec.get("topologySpreadConstraints", [])]
        yield from (f"{title(thing)}: a spread or affinity does not select its own pods" for selector in inner if not matches(selector, labels))
        accounts = {account["metadata"]["name"] for account in of(objects, "ServiceAccount")}
        if spec.get("serviceAccountName") not in accounts:
            yield f"{title(thing)}: there is no ServiceAccount {spec.get('serviceAccountName')}"
    for kind, get in {"Service": lambda spec: {"matchLabels": spec["selector"]}, "PodDisruptionBudget": lambda spec: spec["selector"]}.items():
        for thing in of(objects, kind):
            if len(hits := selected(get(thing["spec"]), objects)) != 1:
                yield f"{title(thing)} selects {[hit[0] for hit in hits]}, want one workload"
    budgets = {hit[0] for budget in of(objects, "PodDisruptionBudget") for hit in selected(budget["spec"]["selector"], objects)}
    yield from (f"{title(thing)} has no disruption budget" for thing in of(objects, "Deployment") if title(thing) not in budgets)


@check
def kubernetes_ports(tree):
    """Services, probes, policies, the Ingress and the addresses in variables lead to ports that are open"""
    objects = example(tree)
    for thing in filter(pod, objects):
        for container in containers(thing):
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                get = container.get(probe, {}).get("httpGet")
                if get and get["port"] not in ports:
                    yield f"{title(thing)}: {probe} asks port {get['port']}"
                if get and get["path"] != ("/readyz" if probe == "readinessProbe" else "/livez"):
                    yield f"{title(thing)}: {probe} asks {get['path']}"
            for name in ("WHARF_LISTEN", "WHARF_GATEWAY", "WHARF_ADVERTISE"):
                value = variables(container).get(name, {}).get("value")
                if value and int(value.rpartition(":")[2]) not in ports.values():
                    yield f"{title(thing)}: {name}={value}, open are {ports}"
    for service in of(objects, "Service"):
        for port in service["spec"]["ports"]:
            for name, _, spec in selected({"matchLabels": service["spec"]["selector"]}, objects):
                if not opens(spec, port["targetPort"]):
                    yield f"{title(service)}: {name} has no port {port['targetPort']}"
    worker = variables(containers(named(objects, "Deployment", "wharf-worker"))[0])
    host, port = re.fullmatch(r"http://([a-z-]+):(\d+)", worker["WHARF_COORDINATOR"]["value"]).groups()
    service = [thing for thing in of(objects, "Service") if thing["metadata"]["name"] == host]
    if not service or int(port) not in [entry["port"] for entry in service[0]["spec"]["ports"]]:
        yield f"workers call {host}:{port}, which is no Service"
    allowed = variables(containers(named(objects, "Deployment", "wharf-coordinator"))[0])["WHARF_ALLOW_HOST"]["value"]
    if host not in allowed.split(","):
        yield f"workers call {host}, but coordinators allow {allowed}"
    for ingress in of(objects, "Ingress"):
        for rule in ingress["spec"]["rules"]:
            for path in rule["http"]["paths"]:
                backend = path["backend"]["service"]
                service = named(objects, "Service", backend["name"])
                if backend["port"].get("name") not in [entry["name"] for entry in service["spec"]["ports"]]:
                    yield f"{title(ingress)}: {backend['name']} has no port {backend['port']}"
    for policy in of(objects, "NetworkPolicy"):
        for rule in policy["spec"].get("ingress", []):
            for port in rule.get("ports", []):
                for name, _, spec in selected(policy["spec"]["podSelector"], objects):
                    if not opens(spec, port["port"]):
                        yield f"{title(policy)}: {name} has no port {port['port']}"
        for rule in policy["spec"].get("egress", []):
            for peer in [peer for peer in rule.get("to", []) if "podSelector" in peer and "namespaceSelector" not in peer]:
                for name, _, spec in selected(peer["podSelector"], objects):
                    if not any(opens(spec, port["port"]) for port in rule["ports"]):
                        yield f"{title(policy)}: {name} has none of the ports {rule['ports']}"


def opens(spec, port):
    ports = [entry for container in spec["containers"] for entry in container["ports"]]
    return any(port in (entry["name"], entry["containerPort"]) for entry in ports)


@check
def kubernetes_scaling(tree):
    """autoscalers have existing targets, one each; the metric counts workers; the way down leaves time to drain"""
    objects = example(tree)
    targets = []
    for hpa in of(objects, "HorizontalPodAutoscaler"):
        spec = hpa["spec"]
        target = spec["scaleTargetRef"]
        targets.append(target["name"])
        found = [thing for thing in of(objects, target["kind"]) if thing["metadata"]["name"] == target["name"]]
        if not found:
            yield f"{title(hpa)}: there is no {target['kind']} {target['name']}"
            continue
        if "replicas" in found[0]["spec"]:
            yield f"{title(found[0])} has replicas, which every apply would reset"
        grace = pod(found[0])[1]["terminationGracePeriodSeconds"]
        for policy in spec["behavior"]["scaleDown"]["policies"]:
            if policy["type"] != "Pods" or policy["value"] != 1 or policy["periodSeconds"] < grace:
                yield f"{title(hpa)}: down by one per grace ({grace} s) at most, found {policy}"
        if not 1 <= spec["minReplicas"] < spec["maxReplicas"]:
            yield f"{title(hpa)}: {spec['minReplicas']} to {spec['maxReplicas']}"
        for metric in spec["metrics"]:
            if metric["type"] == "Resource" and metric["resource"]["name"] not in containers(found[0])[0]["resources"]["requests"]:
                yield f"{title(hpa)}: {target['name']} requests no {metric['resource']['name']}"
        for budget in of(objects, "PodDisruptionBudget"):
            if matches(budget["spec"]["selector"], pod(found[0])[0]) and budget["spec"].get("minAvailable", 0) >= spec["minReplicas"]:
                yield f"{title(budget)}: minAvailable must be below minReplicas ({spec['minReplicas']})"
    if sorted(targets) != ["wharf-coordinator", "wharf-worker"]:
        yield f"autoscalers of {targets}"
    metric = named(objects, "HorizontalPodAutoscaler", "wharf-worker")["spec"]["metrics"][0]
    external = metric.get("external", {})
    pool = variables(containers(named(objects, "Deployment", "wharf-worker"))[0])["WHARF_POOL"]["value"]
    if external.get("metric", {}).get("name") != "wharf_desired_workers" or external["metric"]["selector"]["matchLabels"] != {"pool": pool}:
        yield f"the workers' metric is {metric}"
    elif external["target"] != {"type": "AverageValue", "averageValue": "1"}:
        yield f"want AverageValue 1, as the metric is a number of workers: {external['target']}"
    rule = tree.yaml("deploy/kubernetes/metrics/prometheus-adapter-values.yaml")["rules"]["external"][0]
    if rule["name"]["as"] != "wharf_desired_workers" or not rule["metricsQuery"].startswith("max("):
        yield "the adapter's rule must serve the maximum of wharf_desired_workers"


@check
def kubernetes_timing(tree):
    """grace > preStop + drain + clean-up, what Wharf is told of it, and the arithmetic of probes"""
    drain, objects = tree.span("drain_timeout"), example(tree)
    for name in ("wharf-coordinator", "wharf-worker"):
        times = timing(named(objects, "Deployment", name))
        if times["preStop"] + drain + CLEAN_UP >= times["grace"]:
            yield f"{name}: preStop {times['preStop']} + drain {drain} + clean-up {CLEAN_UP} must be below the grace {times['grace']}"
        if times["preStop"] + times["termination_grace"] != times["grace"]:
            yield f"{name}: preStop {times['preStop']} + WHARF_TERMINATION_GRACE {times['termination_grace']} is not the grace {times['grace']}"
        ready, live, start = (times[probe] for probe in ("readiness", "liveness", "startup"))
        notice = ready["period"] * ready["failures"] + ready["timeout"]
        if notice + tree.span("heartbeat_interval") > tree.span("liveness_ttl"):
            yield f"{name}: readiness takes {notice} s to notice; with a heartbeat that is above liveness_ttl"
        if live["period"] * live["failures"] + live["timeout"] <= notice:
            yield f"{name}: liveness must be slower than readiness ({notice} s)"
        if start["period"] * start["failures"] <= 3 * tree.span("launch_timeout"):
            yield f"{name}: the startup probe gives up before the trial launch does"
    coordinator = named(objects, "Deployment", "wharf-coordinator")
    if timing(coordinator)["preStop"] < ENDPOINTS:
        yield f"coordinator: preStop must cover the removal of endpoints ({ENDPOINTS} s)"
    if coordinator["spec"].get("minReadySeconds", 0) < ENDPOINTS:
        yield f"coordinator: minReadySeconds must cover the addition of endpoints ({ENDPOINTS} s)"
    if coordinator["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] != 0:
        yield "coordinator: an upgrade must not take one away before another is there"


def timing(deployment):
    """The spans of a Deployment, in seconds."""
    spec, container = pod(deployment)[1], containers(deployment)[0]
    command = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["/bin/sleep", "0"])
    if command[:-1] != ["/bin/sleep"]:
        raise ValueError(f"preStop is {command}")
    probe = {name: {"period": container[name + "Probe"]["periodSeconds"], "failures": container[name + "Probe"]["failureThreshold"],
                    "timeout": container[name + "Probe"]["timeoutSeconds"]} for name in ("startup", "readiness", "liveness")}
    told = variables(container)["WHARF_TERMINATION_GRACE"]["value"]
    return {"preStop": int(command[-1]), "grace": spec["terminationGracePeriodSeconds"], "termination_grace": int(seconds(told)), **probe}


@check
def kubernetes_network(tree):
    """policies select existing pods; all is denied first; the store and gateways are the coordinators' alone; pages stay outside"""
    objects = example(tree)
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in of(objects, "NetworkPolicy")}
    for name, spec in policies.items():
        if not selected(spec["podSelector"], objects):
            yield f"{name} selects no pod"
        peers = [peer for rule in spec.get("ingress", []) + spec.get("egress", []) for peer in rule.get("from", []) + rule.get("to", [])]
        for peer in peers:
            if "podSelector" in peer and "namespaceSelector" not in peer and not selected(peer["podSelector"], objects):
                yield f"{name}: {peer} matches no pod"
            if any(key in peer and not any((peer[key] or {}).values()) for key in ("namespaceSelector", "podSelector")):
                yield f"{name}: {peer} is everybody"
        for rule in spec.get("ingress", []):
            if not rule.get("from") or not rule.get("ports"):
                yield f"{name}: an ingress rule is open to all, or to all ports"
    deny = policies.get("default-deny", {})
    if deny != {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}:
        yield f"default-deny is {deny}"
    for labels, wanted in {"store": [COORDINATOR], "worker": [COORDINATOR]}.items():
        spec = policies[labels]
        sources = [peer.get("podSelector", {}).get("matchLabels") for rule in spec["ingress"] for peer in rule["from"]]
        if sources != wanted:
            yield f"{labels} can be reached from {sources}"
    if "egress" in policies["store"] or "Egress" not in policies["store"]["policyTypes"]:
        yield "the store must reach nothing"
    # Other policies add up: none besides the worker's own may widen what a worker reaches, but the one for names.
    for name, spec in policies.items():
        if name not in ("worker", "dns") and spec.get("egress") and matches(spec["podSelector"], WORKER):
            yield f"{name} lets workers out, too"
    yield from pages_stay_outside(policies["worker"])
    dns = policies["dns"]["egress"]
    if [port["port"] for rule in dns for port in rule["ports"]] != [53, 53] or not matches(policies["dns"]["podSelector"], WORKER):
        yield "names: want port 53 for all of Wharf's pods, and nothing else"


def pages_stay_outside(spec):
    coordinators = [rule for rule in spec["egress"] if any(peer.get("podSelector", {}).get("matchLabels") == COORDINATOR for peer in rule["to"])]
    if len(coordinators) != 1:
        yield "workers must reach coordinators"
    blocks = [peer["ipBlock"] for rule in spec["egress"] for peer in rule["to"] if "ipBlock" in peer]
    if [block["cidr"] for block in blocks] != ["0.0.0.0/0", "::/0"]:
        yield f"workers reach {[block['cidr'] for block in blocks]}"
    for block in blocks:
        barred = [ipaddress.ip_network(entry) for entry in block.get("except", [])]
        for wanted in map(ipaddress.ip_network, PRIVATE if "." in block["cidr"] else PRIVATE6):
            if not any(wanted.version == one.version and wanted.subnet_of(one) for one in barred):
                yield f"pages reach {wanted}"


@check
def kubernetes_security(tree):
    """not root, no capabilities, read-only, seccomp, no tokens, no service links, memory for /dev/shm, the strictest namespace"""
    objects = example(tree)
    namespace = named(objects, "Namespace", "wharf")["metadata"]["labels"]
    if namespace.get("pod-security.kubernetes.io/enforce") != "restricted":
        yield "the namespace must enforce the restricted standard"
    yield from (f"{title(account)} mounts a token" for account in of(objects, "ServiceAccount") if account.get("automountServiceAccountToken") is not False)
    yield from (f"{title(thing)} is in namespace {thing['metadata'].get('namespace')}" for thing in objects
                if thing["kind"] != "Namespace" and thing["metadata"].get("namespace") != "wharf")
    for thing in filter(pod, objects):
        spec, where = pod(thing)[1], title(thing)
        context = spec.get("securityContext", {})
        if context.get("runAsNonRoot") is not True or not context.get("runAsUser"):
            yield f"{where} may run as root"
        if spec.get("automountServiceAccountToken") is not False:
            yield f"{where} mounts a token"
        if spec.get("enableServiceLinks") is not False:
            yield f"{where}: service links set WHARF_… variables that Wharf refuses"
        if any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")) or any("hostPath" in volume for volume in spec.get("volumes", [])):
            yield f"{where} shares something with its host"
        profile = context.get("seccompProfile", {})
        wanted = {"type": "Localhost", "localhostProfile": "wharf/chromium.json"} if "worker" in where else {"type": "RuntimeDefault"}
        if profile != wanted:
            yield f"{where}: seccompProfile {profile}, want {wanted}"
        for container in spec["containers"]:
            inner = container.get("securityContext", {})
            if inner != {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}:
                yield f"{where}: securityContext {inner}"
            resources = container.get("resources", {})
            if not {"cpu", "memory"} <= set(resources.get("requests", {})) or "memory" not in resources.get("limits", {}):
                yield f"{where}: resources {resources}"
            volumes = {volume["name"] for volume in spec.get("volumes", [])} | {
                claim["metadata"]["name"] for claim in thing["spec"].get("volumeClaimTemplates", [])}
            yield from (f"{where}: there is no volume {mount['name']}" for mount in container["volumeMounts"] if mount["name"] not in volumes)
    yield from worker_memory(named(objects, "Deployment", "wharf-worker"))


def worker_memory(worker):
    spec, container = pod(worker)[1], containers(worker)[0]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    held = 0
    for path in ("/dev/shm", variables(container)["WHARF_RUN_DIR"]["value"]):
        volume = next((volume for volume in spec["volumes"] if volume["name"] == mounts.get(path)), {}).get("emptyDir", {})
        if volume.get("medium") != "Memory" or size(volume.get("sizeLimit", "0")) < 512 * 1024**2:
            yield f"worker: {path} must be a memory volume of 512 MiB or more, found {volume}"
        held += size(volume.get("sizeLimit", "0"))
    slots = int(variables(container)["WHARF_MAX"]["value"])
    browsers = (slots + 1) * 400 * 1024**2
    if size(container["resources"]["limits"]["memory"]) < browsers + held:
        yield f"worker: the memory limit is below {slots} + 1 browsers of 400 MiB and the memory volumes"
    if variables(container).get("WHARF_SANDBOX", {}).get("value") != "on":
        yield "worker: WHARF_SANDBOX must be on"
    if "WHARF_STORE" in variables(container):
        yield "worker: it must not know the store"
