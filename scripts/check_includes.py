#!/usr/bin/env python3
"""Checks the one-way include edges between the folders of the library.

Prints each include that crosses a forbidden edge, each third-party header in a public header, each
header of intrinsics outside the kernels, and exits with 1 if there is any.
"""

import pathlib
import re
import sys

ALLOWED = {
    "core": set(),
    "ops": {"core"},
    "comm": {"core"},
    "data": {"core"},
    "nn": {"core", "ops"},
    "optim": {"core", "ops", "comm", "nn"},
    "io": {"core", "comm", "data", "nn", "optim"},
    "infer": {"core", "ops", "comm", "data", "nn", "io"},
    "train": {"core", "ops", "comm", "data", "nn", "optim", "io", "infer"},
}
# Folders outside the library that see its public headers only.
PUBLIC_ONLY = ["apps", "examples"]
# What public headers may include: the project's own headers and the C++ standard library's.
PUBLIC = re.compile(r"llmc/[a-z_]+/[a-z0-9_]+\.h|[a-z_]+")
INTRINSICS = re.compile(r"(intrin|arm_neon|arm_sve)\.h$")
KERNELS = pathlib.PurePath("src/ops/cpu/kernels")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')
SOURCES = {".h", ".cpp", ".cu", ".cuh"}


def includes(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match.group(1)


def folder_of(name):
    """The library folder an include names: llmc/<folder>/x.h or <folder>/x.h; None for others."""
    parts = name.removeprefix("llmc/").split("/")
    return parts[0] if len(parts) > 1 and parts[0] in ALLOWED else None


def check(root):
    errors = []
    for base in ("include/llmc", "src"):
        for folder, allowed in ALLOWED.items():
            for path in sorted((root / base / folder).rglob("*")):
                if path.suffix not in SOURCES:
                    continue
                for number, name in includes(path):
                    where = f"{path.relative_to(root)}:{number}"
                    target = folder_of(name)
                    if target and target != folder and target not in allowed:
                        errors.append(f"{where}: {folder} may not include {target} ({name})")
                    if base == "include/llmc" and not PUBLIC.fullmatch(name):
                        errors.append(f"{where}: public header includes {name}")
                    if INTRINSICS.search(name) and not path.is_relative_to(root / KERNELS):
                        errors.append(f"{where}: intrinsics outside {KERNELS} ({name})")
                    if name == "fstream":
                        errors.append(f"{where}: only core/file opens files ({name})")
    for folder in PUBLIC_ONLY:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SOURCES:
                continue
            for number, name in includes(path):
                if folder_of(name) and not name.startswith("llmc/"):
                    errors.append(
                        f"{path.relative_to(root)}:{number}: {folder} uses public headers only ({name})"
                    )
    return errors


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    errors = check(root)
    for error in errors:
        print(error)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
