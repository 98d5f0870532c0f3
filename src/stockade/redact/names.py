"""Which names say that what they name is a secret: keys of mappings and options of commands."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Python's `re` is safe here: the patterns have no nested repeats, and names are cut before.
_MAX_NAME = 256
_SEPARATORS = re.compile(r"[^a-z0-9]+")

#: A key that is, or ends in, one of these names a secret.
_SECRET_ENDS = (
    "accesskey",
    "apikey",
    "auth",
    "authkey",
    "authorization",
    "bearer",
    "clientsecret",
    "connectionstring",
    "cookie",
    "cookies",
    "credential",
    "credentials",
    "encryptionkey",
    "masterkey",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "passwords",
    "privatekey",
    "pwd",
    "secret",
    "secretkey",
    "secrets",
    "secretvalue",
    "secretaccesskey",
    "signingkey",
    "token",
)
#: Keys with such an end that name none.
_HARMLESS = frozenset({"pwd", "oldpwd", "auth"})
#: A number under a key that begins so counts or bounds something: `max_token`, `numSecrets`.
_COUNTS = ("max", "min", "num", "count", "total", "limit", "n")

_OPTION = re.compile(
    r"--?[a-z0-9\-]*(?:token|password|passwd|passphrase|secret|api-?key|access-?key|private-?key"
    r"|credentials?)",
    re.IGNORECASE,
)
_USER_PASSWORD_PROGRAMS = frozenset({"curl", "wget", "http", "https", "xh"})
_USER_OPTIONS = frozenset({"-u", "--user", "-U", "--proxy-user", "-a", "--auth"})


def names_secret(key: str) -> bool:
    """Say whether what a mapping holds under ``key`` is a secret."""
    name = _SEPARATORS.sub("", key[-_MAX_NAME:].lower())
    return name.endswith(_SECRET_ENDS) and name not in _HARMLESS


def names_count(key: str) -> bool:
    """Say whether a number under ``key`` is a count, although the key's end names a secret."""
    return key.lower().startswith(_COUNTS)


def secret_arguments(argv: Sequence[object]) -> frozenset[int]:
    """Return the positions in a command line whose whole argument is a secret.

    That is what follows `--with-token` and the like; `--name=value` is a matter of text rules.
    """
    found = {
        at + 1
        for at, word in enumerate(argv[:-1])
        if isinstance(word, str)
        and _OPTION.fullmatch(word[:_MAX_NAME])
        and not _looks_like_option(argv[at + 1])
    }
    return frozenset(found | _user_passwords(argv))


def _looks_like_option(word: object) -> bool:
    return isinstance(word, str) and word.startswith("--") and word[2:3].isalpha()


def _user_passwords(argv: Sequence[object]) -> set[int]:
    """Return where `curl -u user:password` has its value."""
    program = argv[0] if argv else None
    if not isinstance(program, str) or program.rpartition("/")[2] not in _USER_PASSWORD_PROGRAMS:
        return set()
    return {
        at + 1
        for at, word in enumerate(argv[:-1])
        if word in _USER_OPTIONS and isinstance(value := argv[at + 1], str) and ":" in value
    }
