"""The `isolation` part of the policy: which wall, which image, who the payload is; no I/O."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from stockade.policy._model import Listed, Model, Text, check_int, check_path

#: A system call's name as the kernel spells it; whether it exists is checked when the profile is compiled.
SyscallName = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{1,63}$")]
#: A POSIX environment variable's name.
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,254}$")]

#: Image `host`: a curated read-only view of the host's own programs.
IMAGE_HOST = "host"


class Isolation(Model):
    """Which wall stands around a session's commands, and how thick each part of it is."""

    level: Literal["process", "container", "microvm"] = "container"
    #: `host`, or the absolute path of a directory that holds a root file system
    image: str = IMAGE_HOST
    hostname: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")] = "sandbox"
    #: `default` takes limits that are enforced or watched, `strict` only enforced ones
    grades: Literal["default", "strict"] = "default"
    #: a read-only /sys (none without it)
    sys: bool = False
    #: the payload's user id inside
    uid: Annotated[Literal[0, 1000], BeforeValidator(check_int)] = 1000
    #: the system call profile, and names that extend it
    profile: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")] = "default"
    allow: Listed[SyscallName] = ()
    deny: Listed[SyscallName] = ()
    #: variables that every command gets besides PATH, HOME and LANG, which they may replace
    env: dict[EnvName, Text] = Field(default_factory=dict)
    #: Landlock as the second wall for files; the host must have it
    landlock: bool = True

    @field_validator("image")
    @classmethod
    def _check_image(cls, value: str) -> str:
        if value == IMAGE_HOST:
            return value
        if value == "/":
            raise ValueError("'/' would show the whole host; use 'host' for its programs")
        return check_path(value)

    @field_validator("deny")
    @classmethod
    def _check_deny(cls, value: tuple[str, ...], info: object) -> tuple[str, ...]:
        both = set(value) & set(getattr(info, "data", {}).get("allow", ()))
        if both:
            raise ValueError(f"both allowed and denied: {', '.join(sorted(both))}")
        return value
