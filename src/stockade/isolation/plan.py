"""A plan: everything that is decided before a sandbox is built, as one value that can be printed and sent; pure."""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import dataclass, field
from typing import Any

import yaml

from stockade.isolation.grades import LimitGrade
from stockade.wire.codec import fields_of
from stockade.wire.frames import PROTOCOL_VERSION
from stockade.wire.launch import Cgroup, Identity, Launch

# The frame's head: length of what follows it, kind, id 0 (wire.frames).
_HEADER = struct.Struct("<IBI")
_AFTER_LENGTH = _HEADER.size - 4
#: Fields that differ between the sandboxes of one policy; the others are encoded once.
_OWN_FIELDS = ("sandbox_id", "identity", "cgroups")


class Template:
    """The launch of every sandbox of one policy on one host, with the parts that never change encoded once."""

    def __init__(self, launch: Launch) -> None:
        """Encode all fields but a sandbox's own."""
        self.launch = launch
        self._parts = [
            (name, codec, self._encode(name, codec)) for name, codec in fields_of(Launch)
        ]

    def encode(self, launch: Launch) -> bytes:
        """Return the frame of a launch made from this template; the same bytes as `wire.encode_launch`."""
        body = bytearray()
        for name, codec, constant in self._parts:
            if constant is None:
                codec.write(body, getattr(launch, name))
            else:
                body += constant
        return _HEADER.pack(_AFTER_LENGTH + len(body), launch.kind, 0) + body

    def _encode(self, name: str, codec: Any) -> bytes | None:  # noqa: ANN401 - a wire codec
        if name in _OWN_FIELDS:
            return None
        out = bytearray()
        codec.write(out, getattr(self.launch, name))
        return bytes(out)


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be built, how well its limits hold, and the environment that commands get."""

    launch: Launch
    grades: tuple[LimitGrade, ...]
    env: tuple[tuple[str, str], ...]
    policy_digest: str
    profile_digest: str
    template: Template = field(repr=False, compare=False)

    @property
    def sandbox_id(self) -> str:
        """The sandbox that this plan is for."""
        return self.launch.sandbox_id

    @property
    def frame(self) -> bytes:
        """The LAUNCH frame."""
        return self.template.encode(self.launch)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, with the programs shortened to their length."""
        launch = self.launch
        return {
            "sandbox": launch.sandbox_id,
            "policy": self.policy_digest,
            "namespaces": _namespace_names(launch.namespaces),
            "landlock": [_plain(rule) for rule in launch.landlock],
            "identity": _plain(launch.identity),
            "cgroups": [_plain(cgroup) for cgroup in launch.cgroups],
            "steps": [{"op": type(step).__name__, **_plain(step)} for step in launch.steps],
            "seccomp": {
                "profile": self.profile_digest,
                "main": f"{len(launch.seccomp_main) // 8} instructions",
                "command": f"{len(launch.seccomp_child) // 8} instructions",
            },
            "rlimits": [_plain(limit) for limit in launch.rlimits],
            "roots": [_plain(root) for root in launch.roots],
            "watch": _plain(launch.watch),
            "environment": dict(self.env),
            "limits": {entry.limit: f"{entry.grade}: {entry.by}" for entry in self.grades},
        }

    def to_yaml(self) -> str:
        """Return the printable form that `stockade plan` shows."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, width=120, allow_unicode=True)


def with_own(
    template: Launch, sandbox_id: str, identity: Identity, cgroups: tuple[Cgroup, ...]
) -> Launch:
    """Return a template's launch for one sandbox; the constructor itself, for `replace` takes six times as long."""
    return Launch(
        PROTOCOL_VERSION,
        sandbox_id,
        template.namespaces,
        template.flags,
        identity,
        cgroups,
        template.steps,
        template.seccomp_main,
        template.seccomp_child,
        template.landlock,
        template.rlimits,
        template.roots,
        template.watch,
        template.pass_out,
    )


_NAMESPACES = {
    0x10000000: "user",
    0x00020000: "mount",
    0x20000000: "pid",
    0x40000000: "network",
    0x08000000: "ipc",
    0x04000000: "uts",
}


def _namespace_names(flags: int) -> list[str]:
    return [name for flag, name in _NAMESPACES.items() if flags & flag]


def _plain(value: object) -> Any:  # noqa: ANN401 - plain data of any shape
    """Return a wire value as dicts, lists, texts and numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value
