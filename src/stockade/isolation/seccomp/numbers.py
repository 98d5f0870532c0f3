"""System call numbers that libseccomp 2.5.4 can't name, and the architectures that profiles are compiled for; pure.

Since 5.1 a new call has one number on every architecture, so one table serves both
(Linux, scripts/syscall.tbl).
"""

from __future__ import annotations

from dataclasses import dataclass

NEWER_CALLS = {
    "process_mrelease": 448,
    "futex_waitv": 449,
    "set_mempolicy_home_node": 450,
    "cachestat": 451,
    "fchmodat2": 452,
    "map_shadow_stack": 453,
    "futex_wake": 454,
    "futex_wait": 455,
    "futex_requeue": 456,
    "statmount": 457,
    "listmount": 458,
    "lsm_get_self_attr": 459,
    "lsm_set_self_attr": 460,
    "lsm_list_modules": 461,
    "mseal": 462,
    "setxattrat": 463,
    "getxattrat": 464,
    "listxattrat": 465,
    "removexattrat": 466,
    "open_tree_attr": 467,
    "file_getattr": 468,
    "file_setattr": 469,
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One that filters are compiled for; `audit` is its AUDIT_ARCH_* value in struct seccomp_data."""

    name: str
    audit: int
    has_x32: bool


X86_64 = Architecture("x86_64", 0xC000003E, has_x32=True)
AARCH64 = Architecture("aarch64", 0xC00000B7, has_x32=False)
ARCHITECTURES = {arch.name: arch for arch in (X86_64, AARCH64)}
