"""The `limits` part of the policy: how much a session may use; no I/O.

Sizes are bytes and durations milliseconds once read; `disk` bounds all storage that Stockade provides together.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stockade.policy._model import Duration, Listed, Model, Size

MIB = 1 << 20

#: Below this not even an interpreter starts: python3 maps 10 MiB, the kernel adds page tables and stacks.
MEMORY_FLOOR = 16 * MIB
#: A tmpfs smaller than this can't hold the synthetic /etc and the mount points.
DISK_FLOOR = 4 * MIB

#: Limits whose grade depends on the host.
GradedLimit = Literal["cpu", "memory", "processes", "disk", "workspace_disk"]


class Limits(Model):
    """What a session may use; R7's values are the defaults."""

    #: cores
    cpu: Annotated[float, Field(ge=0.01, le=1024)] = 0.5
    memory: Size = 512 * MIB
    processes: Annotated[int, Field(ge=1, le=4_000_000)] = 64
    #: None: half of `memory`
    disk: Size | None = None
    #: files, directories and links on that storage, together
    inodes: Annotated[int, Field(ge=64, le=100_000_000)] = 32_768
    open_files: Annotated[int, Field(ge=16, le=1_000_000)] = 1024
    #: /dev/shm; None: an eighth of `disk`
    shm: Size | None = None
    #: bytes kept of each output stream of a command
    output: Annotated[Size, Field(le=1 << 30)] = MIB
    #: a command's time limit where the caller names none (R25: the slow tier)
    timeout: Duration = 60_000
    #: CPU time of one process
    cpu_seconds: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    #: size of one file
    file_size: Size | None = None
    #: limits that this policy does without where the host can't hold them
    accept_missing: Listed[GradedLimit] = ()

    @property
    def disk_bytes(self) -> int:
        """Bytes of all storage that Stockade provides, together."""
        return self.memory // 2 if self.disk is None else self.disk

    @property
    def shm_bytes(self) -> int:
        """Bytes of /dev/shm."""
        return self.disk_bytes // 8 if self.shm is None else self.shm

    @model_validator(mode="after")
    def _check(self) -> Limits:
        if self.memory < MEMORY_FLOOR:
            raise ValueError(f"memory: {self.memory} bytes; at least {MEMORY_FLOOR} are needed")
        # Pages of a tmpfs count as memory: beyond half, filling the disk kills the sandbox (kernel-facts 5).
        if self.disk_bytes > self.memory // 2:
            raise ValueError(f"disk: {self.disk_bytes} bytes are more than half of memory")
        if self.disk_bytes < DISK_FLOOR:
            raise ValueError(f"disk: {self.disk_bytes} bytes; at least {DISK_FLOOR} are needed")
        if self.shm_bytes > self.disk_bytes // 2:
            raise ValueError(f"shm: {self.shm_bytes} bytes are more than half of disk")
        return self
