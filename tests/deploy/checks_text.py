"""What holds for all files: no secrets, no registries, known variables, and guides that say what the manifests do."""

import re

from checks_kubernetes import BASE, EXAMPLE, named, timing
from tree import CLEAN_UP, ROLE_KEYS, containers, render, title, variables

CHECKS = {}
GUIDES = ["docs/guide/fleet.md", "docs/guide/kubernetes.md"]
SECRET = re.compile(r"PASSWORD|TOKEN|SECRET|(^|_)KEY$|STORE$|CREDENTIAL")


def check(function):
    CHECKS[function.__name__] = function
    return function


@check
def secrets(tree):
    """no secret has a value or a default in any file, and the guide makes every Secret that pods refer to"""
    for file in tree.files("deploy"):
        text = tree.text(file)
        for name, rest in re.findall(r"\$\{([A-Z_]+)(:?[-?+=][^}]*)?\}", text):
            if SECRET.search(name) and not rest.startswith(":?"):
                yield f"{file}: ${{{name}{rest}}}: a secret without a value must stop compose (:?), and has no default"
        for user, password in re.findall(r"\w+://([^\s:/@]+):([^\s@/]+)@", re.sub(r"\$\{[^}]*\}", "$VARIABLE", text)):
            if not password.startswith("$"):
                yield f"{file}: an address holds the password of {user}"
        if re.search(r"whf_\w{8,}|BEGIN [A-Z ]*PRIVATE KEY", text):
            yield f"{file} holds a key"
        for name, value in re.findall(r"^\s+([A-Z_]+): (\S+)", text, re.M):
            if SECRET.search(name) and "${" not in value:
                yield f"{file}: {name} has a value"
    guide = tree.text("docs/guide/kubernetes.md")
    for thing in render(tree, EXAMPLE)[0]:
        if thing["kind"] == "Secret":
            yield f"{title(thing)} is in a file"
        for container in containers(thing):
            for name, entry in variables(container).items():
                reference = entry.get("valueFrom", {}).get("secretKeyRef")
                if SECRET.search(name) and not reference:
                    yield f"{title(thing)}: {name} has a value"
                if reference and not re.search(rf"secret generic {reference['name']} [^#]*?--from-literal={reference['key']}=", guide):
                    yield f"{title(thing)}: the guide does not make {reference['key']} of Secret {reference['name']}"


@check
def known_variables(tree):
    """every WHARF_ variable is one that Wharf knows: it refuses others"""
    known = {"WHARF_" + key.upper() for key in [*tree.defaults(), *ROLE_KEYS]}
    for file in tree.files("deploy"):
        text = re.sub(r"#.*", "", tree.text(file))
        yield from (f"{file}: {name} is not known" for name in sorted(set(re.findall(r"\bWHARF_[A-Z_]+", text)) - known))


@check
def plain_names(tree):
    """no registry is named, images have versions, and no path of somebody's machine is in a file"""
    for file in [*tree.files("deploy"), *GUIDES]:
        text = tree.text(file)
        for image in re.findall(r"^\s*(?:-\s+)?image: (\S+)", text, re.M):
            if not re.fullmatch(r"[a-z]+:\d[\w.-]*", image):
                yield f"{file}: image {image}"
        if found := re.search(r"docker\.io|ghcr\.io|quay\.io|gcr\.io|registry\.k8s\.io|/home/\w+|/work/|/root/|/Users/", text):
            yield f"{file}: {found[0]}"


@check
def guide_numbers(tree):
    """the table of numbers in kubernetes.md is what the manifests and Wharf's defaults say"""
    objects = render(tree, BASE)[0]
    coordinator, worker = (named(objects, "Deployment", name) for name in ("wharf-coordinator", "wharf-worker"))
    scaling = {role: named(objects, "HorizontalPodAutoscaler", f"wharf-{role}")["spec"] for role in ("coordinator", "worker")}
    down = scaling["worker"]["behavior"]["scaleDown"]
    times = {"coordinator": timing(coordinator), "worker": timing(worker)}
    true = {key: tree.span(key) for key in ("drain_timeout", "heartbeat_interval", "liveness_ttl", "launch_timeout")}
    true |= {"clean-up": CLEAN_UP, "coordinator minReadySeconds": coordinator["spec"]["minReadySeconds"],
             "coordinator minReplicas": scaling["coordinator"]["minReplicas"],
             "coordinator minAvailable": named(objects, "PodDisruptionBudget", "wharf-coordinator")["spec"]["minAvailable"],
             "worker maxUnavailable": named(objects, "PodDisruptionBudget", "wharf-worker")["spec"]["maxUnavailable"],
             "worker scale-down window": down["stabilizationWindowSeconds"], "worker scale-down period": down["policies"][0]["periodSeconds"],
             "worker slots": int(variables(containers(worker)[0])["WHARF_MAX"]["value"])}
    for role, spans in times.items():
        true |= {f"{role} {key}": spans[key] for key in ("preStop", "grace", "termination_grace")}
    for probe, keys in {"startup": ("period", "failures"), "readiness": ("period", "failures", "timeout"), "liveness": ("period", "failures", "timeout")}.items():
        if times["coordinator"][probe] != times["worker"][probe]:
            yield f"{probe} probes of the roles differ, and the table has one number"
        true |= {f"{probe} {key}": times["worker"][probe][key] for key in keys}
    table = section(tree.text("docs/guide/kubernetes.md"), "numbers")
    told = {name: int(value) for name, value in re.findall(r"^\| ([^|`]+?) \| (\d+) \|", table, re.M)}
    for name in sorted(true.keys() | told.keys()):
        if true.get(name) != told.get(name):
            yield f"{name}: the guide says {told.get(name)}, the files {true.get(name)}"


@check
def guide_rules(tree):
    """every inequality in kubernetes.md is true, and made of the numbers in its table"""
    text = tree.text("docs/guide/kubernetes.md")
    numbers = set(re.findall(r"\| (\d+) \|", section(text, "numbers"))) | {"3"}
    rules = re.findall(r"\| `([^`]+)` \|", section(text, "rules"))
    if len(rules) < 10:
        yield f"only {len(rules)} rules"
    for rule in rules:
        if not re.fullmatch(r"[\d +*<=]+", rule):
            yield f"{rule!r} is no inequality"
        elif not eval(rule, {"__builtins__": {}}):  # digits and operators only, by the line above
            yield f"{rule} is not true"
        elif foreign := set(re.findall(r"\d+", rule)) - numbers:
            yield f"{rule}: {sorted(foreign)} are not in the table"
    drain = CLEAN_UP + tree.span("drain_timeout")
    for guide in GUIDES:
        waits = re.findall(r"/drain\?wait=(\d+)s", tree.text(guide))
        if not waits or any(int(wait) < drain for wait in waits):
            yield f"{guide}: drain?wait={waits}, want at least {drain} s (drain and clean-up)"


def section(text, name):
    return re.search(rf"<!-- checked: {name} -->(.*?)<!-- /checked -->", text, re.S)[1]


@check
def guide_links(tree):
    """links of both guides lead to files and headings, and the files that they name in deploy/ exist"""
    for guide in GUIDES:
        text = tree.text(guide)
        headings = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", text, re.M)}
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if target.startswith("#"):
                if target[1:] not in headings:
                    yield f"{guide}: there is no heading {target}"
                continue
            parts = guide.split("/")[:-1]
            for part in target.partition("#")[0].split("/"):
                parts = parts[:-1] if part == ".." else [*parts, part]
            if not tree.exists("/".join(parts)):
                yield f"{guide}: {target} leads nowhere"
        for name in set(re.findall(r"(?<![\w/.])deploy/[\w./-]*\w", text)):
            if not tree.exists(name):
                yield f"{guide}: {name} does not exist"
    for name in re.findall(r"^\| `((?:base|components|metrics|overlays)/[^`]*)` \|", tree.text("docs/guide/kubernetes.md"), re.M):
        if not tree.exists(f"deploy/kubernetes/{name}"):
            yield f"docs/guide/kubernetes.md: {name} does not exist"
