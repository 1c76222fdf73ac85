"""Runs a command as a container with deploy/seccomp-chromium.json would: no capabilities, no new privileges, the filter.

    python3 under_seccomp.py PROFILE COMMAND [ARGUMENT ...]

Its own file because a filter, once loaded, holds for the process: the check starts it as a child. It needs libseccomp
(Debian's apt brings it) and nothing from PyPI. Started by root, it becomes the user of the image first.
"""

import ctypes
import json
import os
import sys

UID = 10001
PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 38, 24
ARCHES = {"SCMP_ARCH_X86_64": 0xC000003E, "SCMP_ARCH_AARCH64": 0xC00000B7}
OPERATORS = {"SCMP_CMP_NE": 1, "SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


class Compare(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def action(rule, default_errno=1):
    return ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else ERRNO | rule.get("errnoRet", default_errno)


def load(profile):
    """Builds the filter as a container runtime does, and loads it."""
    lib = ctypes.CDLL("libseccomp.so.2")
    lib.seccomp_init.restype = ctypes.c_void_p
    lib.seccomp_init.argtypes = [ctypes.c_uint32]
    lib.seccomp_arch_add.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    lib.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    lib.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(Compare)]
    lib.seccomp_load.argtypes = [ctypes.c_void_p]
    if profile["defaultAction"] != "SCMP_ACT_ERRNO":
        sys.exit("the default action is not SCMP_ACT_ERRNO")
    context = lib.seccomp_init(ERRNO | profile.get("defaultErrnoRet", 1))
    for arch in profile["architectures"]:
        if lib.seccomp_arch_add(context, ARCHES[arch]) not in (0, -17):
            sys.exit(f"libseccomp refuses {arch}")
    for rule in profile["syscalls"]:
        compares = []
        for arg in rule.get("args", []):
            mask = arg["op"] == "SCMP_CMP_MASKED_EQ"
            second = arg.get("valueTwo", 0) if mask else 0
            compares.append(Compare(arg["index"], OPERATORS[arg["op"]], arg["value"], second))
        array = (Compare * len(compares))(*compares)
        for name in rule["names"]:
            number = lib.seccomp_syscall_resolve_name(name.encode())
            if number == -1:  # newer than this libseccomp; a container runtime skips it too
                continue
            code = lib.seccomp_rule_add_array(context, action(rule), number, len(compares), array)
            if code != 0:
                sys.exit(f"libseccomp refuses the rule for {name}: {os.strerror(-code)}")
    if lib.seccomp_load(context) != 0:
        sys.exit("the kernel refuses the filter")


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        profile = json.load(file)
    libc = ctypes.CDLL(None, use_errno=True)
    if os.getuid() == 0:
        for capability in range(64):
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        sys.exit("no_new_privs failed")
    load(profile)
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
