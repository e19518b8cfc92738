#!/usr/bin/env python3
"""Writes src/data/unicode_tables.cpp: the code points of Unicode's categories L and N as ranges.

Run it with the version of Unicode that the tables shall follow, for example
  pip install unicodedata2==16.0.0 && scripts/write_unicode_tables.py src/data/unicode_tables.cpp
Python's own unicodedata is used where unicodedata2 is not installed.
"""

import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

COLUMNS = 100


def ranges_of(category):
    ranges = []
    for code in range(0x110000):
        if unicodedata.category(chr(code))[0] != category:
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return ranges


def table(name, category):
    lines, line = [], "   "
    for first, last in ranges_of(category):
        entry = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line) + len(entry) > COLUMNS:
            lines.append(line)
            line = "   "
        line += entry
    lines.append(line)
    body = "\n".join(lines)
    return f"const CodePointRange {name}[] = {{\n{body}\n}};\n"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    parts = [
        f"// Written by scripts/write_unicode_tables.py from Unicode {unicodedata.unidata_version}.\n"
        '#include "data/unicode_tables.h"\n\nnamespace llmc {\n\n// clang-format off\n'
    ]
    for kind, category in (("Letter", "L"), ("Number", "N")):
        parts.append(table(f"k{kind}Ranges", category))
        parts.append(f"const std::size_t k{kind}RangeCount = std::size(k{kind}Ranges);\n\n")
    parts.append("// clang-format on\n\n}  // namespace llmc\n")
    with open(sys.argv[1], "w", encoding="ascii") as out:
        out.write("".join(parts))


if __name__ == "__main__":
    main()
