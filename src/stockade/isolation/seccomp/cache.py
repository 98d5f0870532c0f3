"""Compiled profiles in memory and on disk; the disk cache is never trusted without its checksum.

An entry's name is the digest of all that went into it, its content starts with a checksum. One that is damaged,
foreign or writable by others is compiled again, never loaded.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import stat
import tempfile
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stockade.errors import HostUnsupported
from stockade.isolation.seccomp.compiler import (
    COMPILER_VERSION,
    Compiled,
    Notified,
    compile_programs,
)
from stockade.isolation.seccomp.numbers import ARCHITECTURES, NEWER_CALLS
from stockade.isolation.seccomp.profile import profile_text, read_profile

#: Programs are at most 4096 instructions of 8 bytes, three of them, in base64.
MAX_ENTRY_BYTES = 256 * 1024


@dataclass(frozen=True)
class Program:
    """A compiled profile: the filters, who is notified, and the digest of all that went into it."""

    main: bytes
    child: bytes
    child_single: bytes
    notified: tuple[Notified, ...]
    digest: str
    profile: str

    @cached_property
    def names(self) -> dict[int, Notified]:
        """The notified calls by number."""
        return {entry.number: entry for entry in self.notified}


_memory: dict[tuple[object, ...], Program] = {}


def compile_profile(
    name: str = "default",
    allow: tuple[str, ...] = (),
    deny: tuple[str, ...] = (),
    arch: str = "x86_64",
    cache_dir: Path | None = None,
) -> Program:
    """Return the programs of a profile, from memory, disk or libseccomp, in that order.

    Raises `PolicyError` for an unknown profile or call, `HostUnsupported` for an architecture without a table.
    """
    if arch not in ARCHITECTURES:
        raise HostUnsupported(f"system call filters on {arch}", "Use an x86_64 or aarch64 host.")
    key = (name, allow, deny, arch)
    program = _memory.get(key)
    if program is None:
        digest = _digest(name, allow, deny, arch)
        program = _load(cache_dir, digest, name) if cache_dir else None
        if program is None:
            profile = read_profile(name).extended(allow, deny)
            program = _program(compile_programs(profile, ARCHITECTURES[arch]), digest, name)
            if cache_dir:
                _store(cache_dir, program)
        _memory[key] = program
    return program


def _digest(name: str, allow: tuple[str, ...], deny: tuple[str, ...], arch: str) -> str:
    parts = [COMPILER_VERSION, profile_text(name), sorted(allow), sorted(deny), arch, NEWER_CALLS]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _program(compiled: Compiled, digest: str, name: str) -> Program:
    return Program(
        compiled.main, compiled.child, compiled.child_single, compiled.notified, digest, name
    )


def _path(cache_dir: Path, digest: str) -> Path:
    return cache_dir / f"seccomp-{digest}.json"


def _load(cache_dir: Path, digest: str, name: str) -> Program | None:
    """Return a sound entry, or None for one that is missing, damaged or not ours."""
    try:
        descriptor = os.open(_path(cache_dir, digest), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        if not _is_ours(facts):
            return None
        content = file.read(MAX_ENTRY_BYTES)
    checksum, _, body = content.partition(b"\n")
    if hashlib.sha256(digest.encode() + body).hexdigest().encode() != checksum:
        return None
    data: dict[str, Any] = json.loads(body)
    notified = tuple(Notified(**entry) for entry in data["notified"])
    blobs = {key: base64.b64decode(data[key]) for key in ("main", "child", "child_single")}
    return Program(**blobs, notified=notified, digest=digest, profile=name)


def _is_ours(facts: os.stat_result) -> bool:
    writable_by_others = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid() and not writable_by_others


def _store(cache_dir: Path, program: Program) -> None:
    """Write an entry beside its final name and rename it; a cache that can't be written is only slower."""
    blobs = {
        key: base64.b64encode(getattr(program, key)).decode()
        for key in ("main", "child", "child_single")
    }
    body = json.dumps({**blobs, "notified": [asdict(entry) for entry in program.notified]}).encode()
    checksum = hashlib.sha256(program.digest.encode() + body).hexdigest().encode()
    with contextlib.suppress(OSError):
        cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=cache_dir, prefix=".seccomp-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(checksum + b"\n" + body)
            os.replace(temporary, _path(cache_dir, program.digest))
        except OSError:
            os.unlink(temporary)
            raise
