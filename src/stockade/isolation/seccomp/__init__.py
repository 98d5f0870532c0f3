"""System call filters: profiles as data, compiled with libseccomp, cached as BPF."""

from stockade.isolation.seccomp.cache import Program, compile_profile
from stockade.isolation.seccomp.compiler import Notified
from stockade.isolation.seccomp.profile import read_profile

__all__ = ["Notified", "Program", "compile_profile", "read_profile"]
