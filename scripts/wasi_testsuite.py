"""The adapter of glasshouse for the runner of WebAssembly/wasi-testsuite; docs/reference/wasi.md.

The runner asks it for a name, a version and a command line. GLASSHOUSE names another
binary than the one on the path.
"""

import os
import shlex
import subprocess

GLASSHOUSE = shlex.split(os.getenv("GLASSHOUSE", "glasshouse"))


def get_name():
    return "glasshouse"


def get_version():
    out = subprocess.run(GLASSHOUSE[:1] + ["--version"], encoding="utf-8", capture_output=True, check=True)
    return out.stdout.split()[-1]


def get_wasi_versions():
    return ["wasm32-wasip1"]


def get_wasi_worlds():
    return ["wasi:cli/command"]


def get_timeout_seconds():
    return 30  # a module is compiled before it is run for the first time


def compute_argv(test_path, *given):
    """given begins with arguments, environment and directories: apart in runners before
    the autumn of 2025, and in one tuple or list since. What follows says what of later
    versions of WASI a test needs. The directories are pairs, or the one that is to be
    "/"."""
    apart = len(given) > 1 and isinstance(given[1], dict)
    args, env, dirs = given[:3] if apart else given[0]
    if isinstance(dirs, (str, os.PathLike)):
        dirs = [(dirs, "/")]
    argv = GLASSHOUSE + ["wasm", "run"]
    for name, value in env.items():
        argv += ["--env", f"{name}={value}"]
    for host, guest in dirs or []:
        argv += ["--mount", f"{host}:{guest}"]
    return argv + [str(test_path)] + list(args)
