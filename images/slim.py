"""Runs inside the build: removes files that are not needed at run time from installed packages, and prints their size.

Usage: slim.py SITE_PACKAGES

Headers and static libraries are for compiling against TensorFlow, NumPy and CUDA; libclang parses C for TensorFlow's own
build; tests are the packages' own; symbol tables of libraries are for debuggers (what the dynamic linker needs is in
another table, which stays). The packages' metadata stays, so `pip check` still sees what is installed.
"""

import os
import shutil
import struct
import sys
from pathlib import Path
from typing import BinaryIO

DIRECTORIES = ("tensorflow/include", "clang", "**/tests", "nvidia/*/include", "numpy/_core/include")
FILES = ("**/*_test.py", "**/*.a", "**/*.lib", "**/*.h", "**/*.hpp", "**/*.pyi", "**/*.pyx", "**/*.pxd")

# ELF, 64 bits, little-endian (elf(5)): the header from e_type on, one section header, one segment header.
_IDENT = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<HHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMTAB, _NOBITS, _ALLOCATED = 2, 8, 2


def remove(packages: Path) -> int:
    """Delete DIRECTORIES and FILES below `packages`; return their size in bytes."""
    before = _size(packages)
    for pattern in DIRECTORIES:
        for directory in sorted(packages.glob(pattern)):
            shutil.rmtree(directory, ignore_errors=True)
    for pattern in FILES:
        for file in packages.glob(pattern):
            file.unlink()
    return before - _size(packages)


def strip(file: Path) -> int:
    """Remove the symbol tables from an ELF library or program; return how many bytes shorter it is, 0 for any other file.

    The bytes of segments do not change: only those after all segments are moved or removed.
    """
    with file.open("rb") as stream:
        if stream.read(len(_IDENT)) != _IDENT:
            return 0
    with file.open("r+b") as stream:
        header = list(_HEADER.unpack(_read(stream, 16, _HEADER.size)))
        segments_at, sections_at, segment_count, section_count, names_section = (header[i] for i in (4, 5, 9, 11, 12))
        sections = list(_SECTION.iter_unpack(_read(stream, sections_at, section_count * _SECTION.size)))
        segments = list(_SEGMENT.iter_unpack(_read(stream, segments_at, segment_count * _SEGMENT.size)))
        dropped = {i for i, section in enumerate(sections) if section[1] == _SYMTAB}
        if any(section[6] in dropped for section in sections):  # relocations need the table
            return 0
        kept_names = {section[6] for i, section in enumerate(sections) if i not in dropped} | {names_section}
        dropped |= {sections[i][6] for i in dropped} - kept_names
        end = max((offset + size for _, _, offset, _, _, size, _, _ in segments), default=0)
        tail, table = bytearray(), bytearray()
        for i, section in enumerate(sections):
            if i in dropped:
                table += bytes(_SECTION.size)  # an inactive section: the others keep their numbers
                continue
            name, kind, flags, address, offset, size, link, info, align, entry = section
            if not flags & _ALLOCATED and kind != _NOBITS and offset >= end:
                tail += bytes(-(end + len(tail)) % max(align, 1))
                content = _read(stream, offset, size)
                offset = end + len(tail)
                tail += content
            table += _SECTION.pack(name, kind, flags, address, offset, size, link, info, align, entry)
        tail += bytes(-(end + len(tail)) % 8)
        before, after = file.stat().st_size, end + len(tail) + len(table)
        if after >= before:
            return 0
        header[5] = end + len(tail)
        stream.truncate(end)
        stream.seek(end)
        stream.write(tail + table)
        stream.seek(16)
        stream.write(_HEADER.pack(*header))
    return before - after


def _read(stream: BinaryIO, offset: int, size: int) -> bytes:
    stream.seek(offset)
    return stream.read(size)


def _size(directory: Path) -> int:
    return sum(os.lstat(path).st_size for path in directory.rglob("*"))


def main() -> None:
    """Slim the packages named on the command line."""
    packages = Path(sys.argv[1])
    removed = remove(packages)
    stripped = sum(strip(file) for file in packages.rglob("*") if file.is_file() and not file.is_symlink())
    print(f"slim.py: {removed / 1e6:.0f} MB of headers, tests and the like removed, {stripped / 1e6:.0f} MB of symbol tables")


if __name__ == "__main__":
    main()
