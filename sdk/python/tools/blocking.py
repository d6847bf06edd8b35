"""Derives the blocking client from the asynchronous one, which is written by hand."""

import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCE = os.path.join("src", "glasshouse", "_async")
TARGET = os.path.join("src", "glasshouse", "_sync")
BY_HAND = "connection.py"  # it uses the blocking sockets of the operating system

REPLACEMENTS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\basync (def|with|for)\b", r"\1"),
        (r"\bawait ", ""),
        (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
        (r"\bStopAsyncIteration\b", "StopIteration"),
        (r"\bAwaitable\[(\w+)\]", r"\1"),
        (r"\bAsync([A-Z]\w*)", r"\1"),
        (r"\basyncio\b", "time"),  # only asyncio.sleep is used
        (r"\baclose\b", "close"),
    ]
]


def is_derived(path):
    """Report whether a path relative to the root is that of a derived module."""
    return os.path.dirname(path) == TARGET and os.path.basename(path) != BY_HAND


def modules():
    """Return the text of each derived module, by its path relative to the root."""
    derived = {}
    for name in sorted(os.listdir(os.path.join(ROOT, SOURCE))):
        if not name.endswith(".py") or name == BY_HAND:
            continue
        with open(os.path.join(ROOT, SOURCE, name), encoding="utf-8") as f:
            text = re.sub(r"\A# Made by .*\n", "", f.read())
        for pattern, replacement in REPLACEMENTS:
            text = pattern.sub(replacement, text)
        derived[os.path.join(TARGET, name)] = f"# Derived from _async/{name}. Do not edit.\n{text}"
    return derived


def write():
    """Write the derived modules, for use from this directory without an installation."""
    for path, text in modules().items():
        with open(os.path.join(ROOT, path), "w", encoding="utf-8") as f:
            f.write(text)


if __name__ == "__main__":
    write()
