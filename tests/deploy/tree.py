"""The files under check: reading, the numbers of Wharf itself, and kustomize's part in Python.

Its own file because every check stands on it. A tree remembers what was read through it, so that the selftest repeats only
the checks that a broken file concerns.
"""

import copy
import functools
import re
from pathlib import Path

import yaml

# At most; fixed in the binary (CLEAN_UP).
CLEAN_UP = 10
# How long Services and balancers may go on sending to a pod that ends, and how long until they know a new one.
ENDPOINTS = 5
# Keys of the fleet's roles, besides those that docs/reference/configuration.md lists.
ROLE_KEYS = {"coordinator", "worker_token", "gateway", "advertise"}

KINDS_WITHOUT_NAMESPACE = {"Namespace"}


def seconds(text):
    """`30s`, `5m`, `24h`, or a bare number of seconds."""
    match = re.fullmatch(r"(\d+)(ms|s|m|h)?", str(text))
    if not match:
        raise ValueError(f"{text!r} is no span")
    return int(match[1]) * {"ms": 0.001, None: 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def size(text):
    """`64KiB`, `1MiB` (Wharf), `64k`, `1g`, `1gb` (nginx, compose), `1Gi` (Kubernetes), in bytes."""
    match = re.fullmatch(r"(\d+)\s*([kKmMgG]?)(iB|i|b|B)?", str(text))
    if not match:
        raise ValueError(f"{text!r} is no size")
    return int(match[1]) * 1024 ** "_kmg".index(match[2].lower() or "_")


# Reading YAML is most of the work, and most checks read the same files.
@functools.cache
def parsed(text):
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(text, Loader=loader) if document is not None]


class Tree:
    LISTING = "(the list of files)"

    def __init__(self, root):
        self.root = Path(root)
        self.seen = set()

    def text(self, path):
        self.seen.add(path)
        return (self.root / path).read_text(encoding="utf-8")

    def path(self, path):
        self.seen.add(path)
        return self.root / path

    def exists(self, path):
        self.seen.add(self.LISTING)
        return (self.root / path).exists()

    def files(self, folder):
        self.seen.add(self.LISTING)
        found = (self.root / folder).rglob("*")
        return sorted(str(file.relative_to(self.root)) for file in found if file.is_file() and "__pycache__" not in file.parts)

    def yaml(self, path):
        (document,) = self.documents(path)
        return document

    def documents(self, path):
        """Copies: whoever asked may change them."""
        return copy.deepcopy(parsed(self.text(path)))

    def defaults(self):
        """Wharf's keys and their defaults, from the reference that is generated from the binary."""
        rows = re.findall(r"^\| `([a-z_]+)` \| [A-Z:]+ \| (?:`([^`]*)`|—) \|", self.text("docs/reference/configuration.md"), re.M)
        if len(rows) < 20:
            raise ValueError("docs/reference/configuration.md has no table of keys as expected")
        return dict(rows)

    def span(self, key):
        return int(seconds(self.defaults()[key]))


# === kustomize ===

def render(tree, folder):
    """What `kubectl kustomize` would print for a folder, and what is wrong with it."""
    problems = []
    objects = build(tree, folder, [], problems)
    return objects, problems


def build(tree, folder, objects, problems):
    name = normal(folder, "kustomization.yaml")
    kustomization = tree.yaml(name)
    known = {"apiVersion", "kind", "namespace", "labels", "resources", "components", "images", "patches"}
    for key in set(kustomization) - known:
        problems.append(f"{name}: the check does not know {key!r}; teach it")
    objects = list(objects)
    for resource in kustomization.get("resources", []):
        target = normal(folder, resource)
        if not tree.exists(target):
            problems.append(f"{name}: {resource} does not exist")
        elif (tree.root / target).is_dir():
            objects += build(tree, target, [], problems)
        else:
            objects += tree.documents(target)
    for component in kustomization.get("components", []):
        objects = build(tree, normal(folder, component), objects, problems)
    for patch in kustomization.get("patches", []):
        objects = apply_patch(tree, folder, patch, objects, problems)
    for thing in objects:
        decorate(thing, kustomization)
    return objects


def normal(folder, path):
    parts = []
    for part in f"{folder}/{path}".split("/"):
        if part == "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def apply_patch(tree, folder, patch, objects, problems):
    path = normal(folder, patch["path"])
    if not tree.exists(path):
        problems.append(f"{normal(folder, 'kustomization.yaml')}: {patch['path']} does not exist")
        return objects
    change = tree.yaml(path)
    target = patch.get("target", {"kind": change["kind"], "name": change["metadata"]["name"]})
    hits = [thing for thing in objects if thing["kind"] == target["kind"] and thing["metadata"]["name"] == target["name"]]
    if len(hits) != 1:
        problems.append(f"{path}: its target {target['kind']} {target['name']} matches {len(hits)} objects, not one")
        return objects
    if change.pop("$patch", None) == "delete":
        return [thing for thing in objects if thing is not hits[0]]
    before = copy.deepcopy(hits[0])
    merge(hits[0], change)
    if hits[0] == before:
        problems.append(f"{path}: changes nothing")
    return objects


def merge(into, change):
    """A strategic merge, as far as it is used: lists of named things by name, other lists replaced."""
    for key, value in change.items():
        old = into.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            merge(old, value)
        elif isinstance(value, list) and isinstance(old, list) and all(isinstance(x, dict) and "name" in x for x in value + old):
            added = []
            for item in value:
                same = [x for x in old if x["name"] == item["name"]]
                if same:
                    merge(same[0], item)
                else:
                    added.append(copy.deepcopy(item))
            into[key] = added + old
        else:
            into[key] = copy.deepcopy(value)


def decorate(thing, kustomization):
    metadata = thing["metadata"]
    if kustomization.get("namespace") and thing["kind"] not in KINDS_WITHOUT_NAMESPACE:
        metadata["namespace"] = kustomization["namespace"]
    for entry in kustomization.get("labels", []):
        metadata.setdefault("labels", {}).update(entry["pairs"])
    for container in containers(thing):
        for image in kustomization.get("images", []):
            name, _, tag = container["image"].partition(":")
            if name == image["name"]:
                container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"


# === looking into objects ===

def pod(thing):
    """The pod template of a workload: (labels, spec), or none."""
    template = thing.get("spec", {}).get("template") if thing["kind"] in ("Deployment", "StatefulSet") else None
    return (template["metadata"].get("labels", {}), template["spec"]) if template else None


def containers(thing):
    return pod(thing)[1]["containers"] if pod(thing) else []


def title(thing):
    return f"{thing['kind']} {thing['metadata']['name']}"


def matches(selector, labels):
    return all(labels.get(key) == value for key, value in (selector or {}).get("matchLabels", {}).items())


def variables(container):
    return {entry["name"]: entry for entry in container.get("env", [])}
