"""Sees that every check can fail: breaks one thing at a time in a copy, and expects exactly the checks that watch it.

A check that did not read a file cannot answer differently when it changes, so only those that did are repeated.
"""

import shutil
import tempfile
import time
from pathlib import Path

from checks_image import CannotRun
from tree import Tree

COPIED = ["deploy", "docs/guide", "docs/reference/configuration.md", "Cargo.toml"]

DOCKERFILE, COMPOSE, NGINX, HAPROXY = "deploy/Dockerfile", "deploy/compose.yaml", "deploy/nginx.conf.template", "deploy/haproxy.cfg"
SECCOMP, GUIDE, FLEET = "deploy/seccomp-chromium.json", "docs/guide/kubernetes.md", "docs/guide/fleet.md"
BASE, EXAMPLE = "deploy/kubernetes/base/", "deploy/kubernetes/overlays/example/"
COORDINATOR, WORKER, POLICIES, SCALING = BASE + "coordinator.yaml", BASE + "worker.yaml", BASE + "networkpolicies.yaml", BASE + "scaling.yaml"
KEDA = "deploy/kubernetes/components/keda/"
MASK = '"value": 235012096, "valueTwo": 0'

# What is broken: (the checks that must fail, [(file, old, new), ...]). The first place is changed; without a new text the file
# goes away.
BREAKS = [
    # the image
    ("dockerfile-lint", [(DOCKERFILE, "# hadolint ignore=DL3008\n", "")]),
    ("dockerfile-lint", [(DOCKERFILE, "WORKDIR /var/lib/wharf", "WORKDIR var/lib/wharf")]),
    ("dockerfile-rules dockerfile-lint", [(DOCKERFILE, "USER 10001:10001", "USER wharf")]),
    ("dockerfile-rules", [(DOCKERFILE, "USER 10001:10001", "USER 10002:10002")]),
    ("dockerfile-rules", [(DOCKERFILE, "--release --locked", "--release")]),
    ("dockerfile-rules", [(DOCKERFILE, "rust:1.95-bookworm", "rust:1.94-bookworm")]),
    ("dockerfile-rules", [(DOCKERFILE, "EXPOSE 8080 8081", "EXPOSE 8080")]),
    ("dockerfile-rules", [(DOCKERFILE, '["/usr/bin/tini", "--", "wharf"]', '["wharf"]')]),
    ("dockerfile-rules", [(DOCKERFILE, " fonts-liberation", "")]),
    ("dockerfile-rules", [("deploy/wharf-health", "", None)]),
    ("seccomp-rules", [(SECCOMP, '"accept", ', '"accept", "mount", ')]),
    ("seccomp-rules", [(SECCOMP, MASK, '"value": 0, "valueTwo": 0')]),
    ("seccomp-rules seccomp-chromium", [(SECCOMP, '"errnoRet": 38', '"errnoRet": 1')]),
    ("seccomp-rules", [(SECCOMP, '"comment": "time",', '"comment": "time", "includes": {"caps": ["CAP_SYS_TIME"]},')]),
    ("seccomp-chromium", [(SECCOMP, MASK, '"value": 2114060288, "valueTwo": 0')]),  # as Docker's default has it
    ("seccomp-chromium", [(SECCOMP, '"chroot"', '"times"')]),
    # compose
    ("compose-schema", [(COMPOSE, "stop_grace_period: 60s\n  read_only", "stop_grace_periods: 60s\n  stop_grace_period: 60s\n  read_only")]),
    ("compose-parts", [(COMPOSE, "  worker:\n", "  worker:\n    container_name: worker\n")]),
    ("compose-networks", [(COMPOSE, "    networks: [grid]", "    networks: [grid, store]")]),
    ("compose-networks", [(COMPOSE, '"127.0.0.1:${GRID_PORT', '"0.0.0.0:${GRID_PORT')]),
    ("compose-networks", [(COMPOSE, "  store:\n    internal: true", "  store:\n    internal: false")]),
    ("compose-addresses", [(COMPOSE, "server 172.30.250.13:8080", "server 172.30.250.14:8080")]),
    ("compose-addresses", [(COMPOSE, "server 172.30.250.13:8080 max_fails=1", "server 172.30.250.13:8080 max_fails=0")]),
    ("compose-addresses", [(COMPOSE, "WHARF_TRUSTED_PROXY: 172.30.250.2/32", "WHARF_TRUSTED_PROXY: 0.0.0.0/0")]),
    ("compose-addresses", [(COMPOSE, "http://coordinator:8080", "http://coordinators:8080")]),
    ("compose-addresses", [(COMPOSE, "NGINX_ENVSUBST_OUTPUT_DIR: /run/nginx", "NGINX_ENVSUBST_OUTPUT_DIR: /etc/nginx")]),
    ("compose-addresses", [(COMPOSE, 'wharf-health, "8081"', 'wharf-health, "8080"')]),
    ("compose-timing", [(COMPOSE, "stop_grace_period: 60s", "stop_grace_period: 40s")]),
    ("compose-timing", [(NGINX, "worker_shutdown_timeout 45s", "worker_shutdown_timeout 30s")]),
    ("compose-hardening", [(COMPOSE, "      - seccomp=./seccomp-chromium.json\n", "")]),
    ("compose-hardening", [(COMPOSE, "shm_size: 1gb", "shm_size: 64mb")]),
    ("compose-hardening", [(COMPOSE, "cap_drop: [ALL]", "cap_drop: [NET_RAW]")]),
    ("compose-hardening", [(COMPOSE, 'WHARF_SANDBOX: "on"', 'WHARF_SANDBOX: "auto"')]),
    # nginx
    ("nginx-test nginx-live", [(NGINX, "server_tokens off;", "server_token off;")]),
    ("nginx-test", [(NGINX, "pid nginx.pid;", "pid /run/nginx.pid;")]),
    ("nginx-rules", [(NGINX, "proxy_read_timeout 86400s", "proxy_read_timeout 60s")]),
    ("nginx-rules", [(NGINX, "keepalive_timeout 5s", "keepalive_timeout 60s")]),
    ("nginx-rules nginx-live", [(NGINX, "error timeout;", "error timeout non_idempotent;"), (NGINX, "proxy_request_buffering off", "proxy_request_buffering on")]),
    ("nginx-rules nginx-live", [(NGINX, "error timeout;", "error timeout http_503;")]),
    ("nginx-rules nginx-live", [(NGINX, "error timeout;", "off;")]),
    ("nginx-rules nginx-live", [(NGINX, "client_max_body_size 0", "client_max_body_size 512k")]),
    ("nginx-rules nginx-live", [(NGINX, "large_client_header_buffers 4 64k", "large_client_header_buffers 4 8k")]),
    ("nginx-rules nginx-live", [(NGINX, "proxy_set_header Forwarded '';", "")]),
    ("nginx-rules nginx-live", [(NGINX, "$request_method $uri ", "$request ")]),
    ("nginx-live", [(NGINX, "default upgrade;", "default close;")]),
    # HAProxy
    ("haproxy-test haproxy-live", [(HAPROXY, "option dontlognull", "option dontlognulls")]),
    ("haproxy-rules haproxy-live", [(HAPROXY, "uri /readyz", "uri /livez")]),
    ("haproxy-rules haproxy-live", [(HAPROXY, "retry-on conn-failure", "retry-on all-retryable-errors")]),
    ("haproxy-test haproxy-rules", [(HAPROXY, "    timeout server 86400s\n", "")]),  # only a warning
    ("haproxy-live", [(HAPROXY, "    log stdout", "    maxconn 200000000\n    log stdout")]),
    ("haproxy-rules", [(HAPROXY, "balance leastconn", "balance source")]),
    ("haproxy-rules haproxy-live", [(HAPROXY, "tune.bufsize 73728", "tune.bufsize 16384")]),
    ("haproxy-rules", [(HAPROXY, "timeout tunnel 86400s", "timeout tunnel 60s")]),
    ("haproxy-rules haproxy-live", [(HAPROXY, "%HM %HP", "%HM %HU")]),
    # kustomize and schemas
    ("kustomize-files", [(BASE + "kustomization.yaml", "  - namespace.yaml\n", "  - namespace.yaml\n  - missing.yaml\n")]),
    ("kustomize-files", [(EXAMPLE + "kustomization.yaml", "      kind: HorizontalPodAutoscaler\n      name: wharf-worker", "      kind: HorizontalPodAutoscaler\n      name: wharf-workers")]),
    ("kustomize-files", [(EXAMPLE + "kustomization.yaml", "  - ingress.yaml\n", "")]),
    ("kubernetes-schema", [(WORKER, "  revisionHistoryLimit: 5", "  revisionsHistoryLimit: 5")]),
    ("kubernetes-schema", [(COORDINATOR, "revisionHistoryLimit: 5", "revisionHistoryLimit: some")]),
    ("kubernetes-schema", [(EXAMPLE + "ingress.yaml", "pathType: Prefix", "pathTypes: Prefix")]),
    ("keda-schema", [(KEDA + "scaledobject.yaml", "pollingInterval: 5", "poolingInterval: 5")]),
    ("keda-schema", [(KEDA + "scaledobject.yaml", "query: max(", "query: sum(")]),
    ("keda-schema", [(KEDA + "scaledobject.yaml", "    name: wharf-worker", "    name: wharf-workers")]),
    ("keda-schema kustomize-files", [(KEDA + "kustomization.yaml", "patches:\n  - path: delete-hpa.yaml\n    target:\n      kind: HorizontalPodAutoscaler\n      name: wharf-worker\n", "")]),
    # what schemas cannot see
    ("kubernetes-selectors", [(BASE + "disruption.yaml", "component: worker", "component: workers")]),
    ("kubernetes-selectors", [(COORDINATOR, "serviceAccountName: wharf-coordinator", "serviceAccountName: wharf")]),
    ("kubernetes-selectors kubernetes-ports", [(COORDINATOR, "  selector:\n    app.kubernetes.io/name: wharf\n    app.kubernetes.io/component: coordinator", "  selector:\n    app.kubernetes.io/name: wharf")]),
    ("kubernetes-ports", [(COORDINATOR, "targetPort: http", "targetPort: web")]),
    ("kubernetes-ports", [(WORKER, "value: http://$(POD_IP):8081", "value: http://$(POD_IP):8080")]),
    ("kubernetes-ports", [(WORKER, "value: http://wharf-coordinator:8080", "value: http://wharf-coordinator:80")]),
    ("kubernetes-ports", [(COORDINATOR, "value: wharf-coordinator\n", "value: coordinator\n")]),
    ("kubernetes-ports", [(WORKER, "path: /readyz", "path: /livez")]),
    ("kubernetes-ports", [(POLICIES, "          port: gateway", "          port: 9999")]),
    ("kubernetes-scaling", [(SCALING, 'averageValue: "1"', 'averageValue: "2"')]),
    ("kubernetes-scaling", [(SCALING, "name: wharf_desired_workers", "name: wharf_wanted_workers")]),
    ("kubernetes-scaling", [(SCALING, "    kind: Deployment\n    name: wharf-coordinator", "    kind: Deployment\n    name: wharf-coordinators")]),
    ("kubernetes-scaling", [(WORKER, "spec:\n", "spec:\n  replicas: 2\n")]),
    ("kubernetes-scaling", [(BASE + "disruption.yaml", "minAvailable: 2", "minAvailable: 3"), (GUIDE, "| coordinator minAvailable | 2 |", "| coordinator minAvailable | 3 |")]),
    ("kubernetes-scaling", [("deploy/kubernetes/metrics/prometheus-adapter-values.yaml", "'max(", "'sum(")]),
    ("kubernetes-timing guide-numbers", [(COORDINATOR, "terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 45")]),
    ("kubernetes-timing guide-numbers", [(COORDINATOR, 'command: [/bin/sleep, "5"]', 'command: [/bin/sleep, "2"]')]),
    ("kubernetes-timing", [(WORKER, "value: 60s", "value: 61s"), (GUIDE, "| worker termination_grace | 60 |", "| worker termination_grace | 61 |")]),
    ("kubernetes-timing", [(COORDINATOR, "minReadySeconds: 5", "minReadySeconds: 0"), (GUIDE, "| coordinator minReadySeconds | 5 |", "| coordinator minReadySeconds | 0 |")]),
    ("kubernetes-timing guide-numbers", [(WORKER, "            periodSeconds: 2\n            failureThreshold: 2", "            periodSeconds: 5\n            failureThreshold: 2")]),
    ("kubernetes-network", [(POLICIES, "              - 169.254.0.0/16\n", "")]),
    ("kubernetes-network", [(POLICIES, "              - fc00::/7\n", "")]),
    ("kubernetes-network", [(POLICIES, "  podSelector: {}\n  policyTypes: [Ingress, Egress]", "  podSelector: {}\n  policyTypes: [Ingress]")]),
    ("kubernetes-network", [(EXAMPLE + "postgres.yaml", "              app.kubernetes.io/component: coordinator", "              app.kubernetes.io/component: worker")]),
    ("kubernetes-network", [(POLICIES, "              wharf-clients: allowed", "              {}")]),
    ("kubernetes-network", [(POLICIES, "              app.kubernetes.io/component: store", "              app.kubernetes.io/component: database")]),
    ("kubernetes-security", [(WORKER, "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false")]),
    ("kubernetes-security", [(WORKER, "runAsNonRoot: true", "runAsNonRoot: false")]),
    ("kubernetes-security", [(WORKER, "localhostProfile: wharf/chromium.json", "localhostProfile: chromium.json")]),
    ("kubernetes-security", [(COORDINATOR, "enableServiceLinks: false", "enableServiceLinks: true")]),
    ("kubernetes-security", [(BASE + "serviceaccounts.yaml", "automountServiceAccountToken: false", "automountServiceAccountToken: true")]),
    ("kubernetes-security", [(WORKER, "            medium: Memory\n", "")]),
    ("kubernetes-security", [(WORKER, "memory: 5Gi", "memory: 3Gi")]),
    ("kubernetes-security", [(BASE + "namespace.yaml", "enforce: restricted", "enforce: baseline")]),
    # all files
    ("secrets", [(COMPOSE, "${WHARF_WORKER_TOKEN:?set WHARF_WORKER_TOKEN to at least 32 characters}", "${WHARF_WORKER_TOKEN:-change-me}")]),
    ("secrets", [(COMPOSE, "${POSTGRES_PASSWORD:?set POSTGRES_PASSWORD to letters and digits}@", "wharf@")]),
    ("secrets", [(COORDINATOR, "              valueFrom:\n                secretKeyRef:\n                  name: wharf-worker\n                  key: token", "              value: a-token-in-a-file")]),
    ("secrets", [(GUIDE, "secret generic wharf-worker ", "secret generic wharf-workers ")]),
    ("known-variables", [(COORDINATOR, "name: WHARF_TERMINATION_GRACE", "name: WHARF_TERMINATION_GRACES"), (COORDINATOR, "              value: 55s", "              value: 55s\n            - name: WHARF_TERMINATION_GRACE\n              value: 55s")]),
    ("plain-names", [(WORKER, "image: wharf:0.1.0", "image: registry.example/wharf:0.1.0"), (EXAMPLE + "kustomization.yaml", "  - name: wharf\n", "  - name: registry.example/wharf\n")]),
    ("guide-numbers", [(GUIDE, "| coordinator preStop | 5 |", "| coordinator preStop | 10 |")]),
    ("guide-numbers", [(GUIDE, "| worker slots | 4 |", "| slots of a worker | 4 |")]),
    ("guide-rules", [(GUIDE, "`5 + 30 + 10 < 60`", "`5 + 30 + 30 < 60`")]),
    ("guide-rules", [(GUIDE, "`3 * 6 < 2 * 30`", "`3 * 7 < 2 * 30`")]),
    ("guide-rules", [(FLEET, "drain?wait=40s", "drain?wait=30s")]),
    ("guide-links", [(FLEET, "](kubernetes.md)", "](kubernetes-guide.md)")]),
    ("guide-links", [(GUIDE, "`components/keda/`", "`components/kedas/`")]),
]


def main(root, checks, run):
    begun = time.monotonic()
    wrong, unwatched, cannot = [], set(checks), set()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            source, target = Path(root, name), copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        reads = {}
        for name, check in checks.items():
            tree = Tree(copy)
            try:
                if problems := run(check, tree):
                    wrong.append(f"{name} fails already: {problems[0]}")
            except CannotRun as reason:
                print(f"skip  {name}: {reason}")
                cannot.add(name)
            reads[name] = tree.seen
        for expected, edits in BREAKS:
            expected = set(expected.split()) - cannot
            found = failing(copy, edits, checks, run, reads, cannot)
            what = "; ".join(f"{file}: {describe(old, new)}" for file, old, new in edits)
            if set(found) == expected:
                print(f"ok    {' '.join(sorted(expected))}: {what}")
            else:
                wrong.append(f"{what}: expected {sorted(expected)}, found {found}")
            unwatched -= set(found)
    wrong += [f"nothing here makes {name} fail" for name in sorted(unwatched - cannot)]
    for line in wrong:
        print(f"FAIL  {line}")
    outcome = f"{len(wrong)} of them wrong" if wrong else "each noticed by its checks and no other"
    print(f"deploy selftest: {len(BREAKS)} things broken, {outcome} ({time.monotonic() - begun:.0f} s)")
    return 1 if wrong else 0


def describe(old, new):
    short = [" ".join(str(text).split())[:44] for text in (old, new)]
    return "removed" if new is None else f"{short[0]!r} -> {short[1]!r}"


def failing(copy, edits, checks, run, reads, cannot):
    """The checks that fail with these edits, each with its first problem. The copy is as before afterwards."""
    before = {}
    for file, old, new in edits:
        path = copy / file
        before.setdefault(path, path.read_bytes())
        text = path.read_text(encoding="utf-8")
        if old not in text:
            return {"(selftest)": f"{file} does not hold {old!r}"}
        path.unlink() if new is None else path.write_text(text.replace(old, new, 1), encoding="utf-8")
    touched = {file for file, _, _ in edits} | ({Tree.LISTING} if any(new is None for _, _, new in edits) else set())
    found = {}
    for name, check in checks.items():
        if name not in cannot and reads[name] & touched and (problems := run(check, Tree(copy))):
            found[name] = problems[0]
    for path, data in before.items():
        path.write_bytes(data)
    return found
