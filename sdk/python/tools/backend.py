"""Builds the package (PEP 517, PEP 660).

A wheel of a pure Python package without dependencies is an archive of its files. This
backend is shorter than the configuration of another one, and works without a network.
"""

import base64
import gzip
import hashlib
import io
import os
import tarfile
import zipfile

import blocking

NAME = "glasshouse"
VERSION = "0.1.0"
TAG = "py3-none-any"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INFO = f"{NAME}-{VERSION}.dist-info"
THEN = (2020, 1, 1, 0, 0, 0)  # fixed, so that builds are reproducible


def _metadata():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        readme = f.read()
    return f"""Metadata-Version: 2.1
Name: {NAME}
Version: {VERSION}
Summary: A client for Glasshouse, which runs agents in jails, watches and governs them
Requires-Python: >=3.9
Classifier: Operating System :: POSIX
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

{readme}"""


def _sources(under):
    """List the files of the package below a directory, relative to the root, without derived ones."""
    for folder, folders, files in os.walk(os.path.join(ROOT, under)):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for name in sorted(files):
            path = os.path.relpath(os.path.join(folder, name), ROOT)
            if not name.endswith(".pyc") and not blocking.is_derived(path):
                yield path


def _wheel(directory, files):
    name = f"{NAME}-{VERSION}-{TAG}.whl"
    files = dict(files)
    files[f"{INFO}/METADATA"] = _metadata().encode()
    files[f"{INFO}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: true\nTag: {TAG}\n".encode()
    record = ""
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    files[f"{INFO}/RECORD"] = (record + f"{INFO}/RECORD,,\n").encode()
    with zipfile.ZipFile(os.path.join(directory, name), "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, THEN)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    files = {}
    for path in _sources("src"):
        with open(os.path.join(ROOT, path), "rb") as f:
            files[os.path.relpath(path, "src").replace(os.sep, "/")] = f.read()
    for path, text in blocking.modules().items():
        files[os.path.relpath(path, "src").replace(os.sep, "/")] = text.encode()
    return _wheel(wheel_directory, files)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    blocking.write()
    return _wheel(wheel_directory, {f"_{NAME}.pth": (os.path.join(ROOT, "src") + "\n").encode()})


def build_sdist(sdist_directory, config_settings=None):
    name, base = f"{NAME}-{VERSION}.tar.gz", f"{NAME}-{VERSION}"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:

        def add(path, data):
            entry = tarfile.TarInfo(f"{base}/{path}")
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))

        for path in ["pyproject.toml", "README.md", *_sources("tools"), *_sources("src")]:
            with open(os.path.join(ROOT, path), "rb") as f:
                add(path, f.read())
        add("PKG-INFO", _metadata().encode())
    with open(os.path.join(sdist_directory, name), "wb") as f, gzip.GzipFile("", "wb", fileobj=f, mtime=0) as z:
        z.write(out.getvalue())
    return name
