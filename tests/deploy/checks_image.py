"""The container image: its file, its linter, its seccomp profile under a real browser."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tree import render, pod

CHECKS = {}
DOCKERFILE = "deploy/Dockerfile"
PROFILE = "deploy/seccomp-chromium.json"
BROWSERS = ["/usr/lib/chromium/chromium-headless-shell", "chromium-headless-shell"]

# Calls that reach beyond a container, or have been the way out of many.
NEVER = """mount umount2 pivot_root setns ptrace process_vm_readv process_vm_writev bpf perf_event_open init_module finit_module
delete_module kexec_load kexec_file_load reboot swapon swapoff acct settimeofday clock_settime adjtimex iopl ioperm
open_by_handle_at name_to_handle_at userfaultfd io_uring_setup io_uring_enter keyctl add_key request_key open_tree move_mount
fsopen fsconfig fsmount fspick mount_setattr syslog quotactl pidfd_getfd kcmp fanotify_init lookup_dcookie""".split()
NEW_NAMESPACES = {"mounts": 0x00020000, "cgroups": 0x02000000, "host names": 0x04000000, "IPC": 0x08000000}
NEW_USER = 0x10000000


class CannotRun(Exception):
    """This machine cannot run the check; says why."""


def check(function):
    CHECKS[function.__name__] = function
    return function


def tool(name):
    """A program beside this interpreter, or on the path (nginx and haproxy are in sbin, which is not on everybody's)."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"])
    found = shutil.which(name, path=path)
    if not found:
        raise FileNotFoundError(f"{name} is not installed")
    return found


@check
def dockerfile_lint(tree):
    """hadolint has nothing to say about the Dockerfile"""
    lint = subprocess.run([tool("hadolint"), "--no-color", "-"], input=tree.text(DOCKERFILE), capture_output=True, text=True, timeout=60)
    yield from (line for line in (lint.stdout + lint.stderr).splitlines() if line.strip())
    if lint.returncode and not lint.stdout:
        yield f"hadolint ended with {lint.returncode}"


def instructions(text):
    """(INSTRUCTION, rest) of each, comments gone and continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.M)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [tuple(line.strip().split(None, 1)) for line in lines if line.strip()]


@check
def dockerfile_rules(tree):
    """not root, locked build, pinned bases, an init, the ports and the user of the manifests, the workspace's Rust"""
    all_of = instructions(tree.text(DOCKERFILE))
    last = max(index for index, (word, _) in enumerate(all_of) if word == "FROM")
    final = all_of[last:]
    users = [rest for word, rest in final if word == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", users[-1]):
        yield f"the last USER must be a number that is not 0, found {users[-1:]}"
    else:
        objects, _ = render(tree, "deploy/kubernetes/base")
        for thing in filter(pod, objects):
            uid = pod(thing)[1]["securityContext"].get("runAsUser")
            if str(uid) != users[-1].split(":")[0]:
                yield f"{thing['metadata']['name']} runs as {uid}, the image as {users[-1]}"
    for word, rest in all_of:
        if word == "FROM" and not re.fullmatch(r"[a-z]+:[a-z0-9.-]+( AS \w+)?", rest):
            yield f"FROM {rest}: want a plain name with a tag"
        if word == "FROM" and rest.split()[0].endswith(":latest"):
            yield f"FROM {rest}: pin the tag"
        if word == "COPY" and "--from" not in rest:
            for source in [part for part in rest.split() if not part.startswith("--")][:-1]:
                if source != "." and not tree.exists(source):
                    yield f"COPY {source}: there is no such file"
    if not any(word == "RUN" and "cargo build" in rest and "--locked" in rest for word, rest in all_of):
        yield "cargo build must be --locked"
    rust = re.search(r'^rust-version = "([\d.]+)"', tree.text("Cargo.toml"), re.M)[1]
    if not any(word == "FROM" and rest.startswith(f"rust:{rust}-") for word, rest in all_of):
        yield f"the build stage is not rust:{rust}, the workspace's rust-version"
    entry = [rest for word, rest in final if word == "ENTRYPOINT"]
    if not entry or json.loads(entry[-1]) != ["/usr/bin/tini", "--", "wharf"]:
        yield "ENTRYPOINT must be tini, then wharf"
    installed = " ".join(rest for word, rest in final if word == "RUN")
    # fontconfig: it brings fc-cache, and no browser package asks for it.
    for package in ("chromium-headless-shell", "fontconfig", "fonts-liberation", "ca-certificates", "tini"):
        if not re.search(rf"\s{package}(\s|$)", installed):
            yield f"the image lacks {package}"
    exposed = {port for word, rest in final if word == "EXPOSE" for port in rest.split()}
    if exposed != {"8080", "8081"}:
        yield f"EXPOSE {sorted(exposed)}, want 8080 (API) and 8081 (gateway)"
    if not any(word == "HEALTHCHECK" for word, _ in final):
        yield "there is no HEALTHCHECK"


@check
def seccomp_rules(tree):
    """the profile means the same to Docker and containerd, denies by default, and allows no way out of a container"""
    profile = json.loads(tree.text(PROFILE))
    if profile["defaultAction"] != "SCMP_ACT_ERRNO":
        yield f"the default is {profile['defaultAction']}"
    if set(profile) != {"defaultAction", "defaultErrnoRet", "architectures", "syscalls"}:
        yield f"fields: {sorted(profile)}"
    seen = {}
    for rule in profile["syscalls"]:
        # Docker knows conditions (includes, excludes); containerd passes over them and allows to all.
        if extra := set(rule) - {"comment", "names", "action", "args", "errnoRet"}:
            yield f"{rule['names'][0]}: {sorted(extra)} mean nothing to containerd"
        for name in rule["names"]:
            seen.setdefault(name, []).append(rule)
    for name in NEVER:
        if name in seen:
            yield f"{name} must not be allowed"
    for name in ("clone", "unshare"):
        for rule in seen.get(name, []):
            arg = (rule.get("args") or [{}])[0]
            mask = arg.get("value", 0) if arg.get("op") == "SCMP_CMP_MASKED_EQ" and arg.get("index") == 0 else 0
            if arg.get("valueTwo", 0) != 0:
                yield f"{name}: demands flags instead of forbidding them"
            for what, bit in NEW_NAMESPACES.items():
                if not mask & bit:
                    yield f"{name} may make new namespaces of {what}"
    if seen.get("clone3", [{}])[0].get("errnoRet") != 38:
        yield "clone3 must answer ENOSYS (38), or programs do not fall back to clone"


@check
def seccomp_chromium(tree):
    """a real headless shell, without capabilities, starts its sandbox under the profile and renders a page"""
    browser = next((found for found in map(shutil.which, BROWSERS) if found), None)
    if browser is None:
        raise CannotRun("there is no chromium-headless-shell")
    if sys.platform != "linux" or not namespaces_work():
        raise CannotRun("this machine forbids user namespaces, so no profile could allow them")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        # Where the image's user can read it, too.
        profile, runner = Path(folder, "profile.json"), Path(folder, "under_seccomp.py")
        profile.write_text(tree.text(PROFILE), encoding="utf-8")
        runner.write_text(Path(__file__).with_name("under_seccomp.py").read_text(encoding="utf-8"), encoding="utf-8")
        command = [base_python(), str(runner), str(profile), browser, f"--user-data-dir={folder}/profile", "--disable-gpu",
                   "--disable-crash-reporter", "--dump-dom", "data:text/html,<p>in the sandbox</p>"]
        environment = {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder}
        try:
            shell = subprocess.run(command, capture_output=True, text=True, timeout=40, env=environment, cwd=folder)
        except subprocess.TimeoutExpired:
            yield "the browser did not end within 40 s"
            return
    if "<p>in the sandbox</p>" not in shell.stdout:
        lines = [line for line in shell.stderr.splitlines() if "sandbox" in line.lower() or "FATAL" in line or "refuses" in line]
        yield f"no page; the browser said: {' / '.join(line[:200] for line in lines[-2:] or shell.stderr.splitlines()[-2:])}"


def base_python():
    """The interpreter itself: the virtual environment may lie where the image's user cannot look."""
    return shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin") or sys.executable


def namespaces_work():
    """Whether the image's user can make a user namespace without any filter."""
    script = ("import ctypes, os\n"
              "if os.getuid() == 0: os.setgroups([]); os.setresgid(10001, 10001, 10001); os.setresuid(10001, 10001, 10001)\n"
              f"raise SystemExit(ctypes.CDLL(None).unshare({NEW_USER}) != 0)")
    return subprocess.run([base_python(), "-c", script], capture_output=True, timeout=20).returncode == 0
