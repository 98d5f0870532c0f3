"""The steps that make a sandbox's root: the curated view of the host, or a directory; pure.

Image `host` is a small tmpfs with read-only binds of /usr and chosen parts of /etc, and synthetic files for the rest.
It never shows /home, /root, /var, /run, /boot, /etc/shadow or /etc/passwd. What is mounted on top (/dev, /proc,
/tmp, workspaces) comes from `container` and `filesystem`.
"""

from __future__ import annotations

from collections.abc import Iterator

from stockade.errors import HostUnsupported, ImageError
from stockade.isolation.host import Entry, Host
from stockade.policy import IMAGE_HOST, Policy
from stockade.wire.launch import (
    ATTR_NODEV,
    ATTR_NOSUID,
    ATTR_RDONLY,
    NO_MAP,
    OWNER_PAYLOAD,
    OWNER_ROOT,
    Bind,
    Mkdir,
    Overlay,
    Root,
    RootTree,
    Step,
    Symlink,
    WriteFile,
)

READ_ONLY = ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV
#: The payload's name inside.
PAYLOAD_NAME = "agent"
#: An overlay in a user namespace on a tmpfs fails at rmdir before (kernel-facts 20).
OVERLAY_KERNEL = (6, 6)

#: Directories that must be in a read-only image, because mounts go there and none can be made.
MOUNT_POINTS = ("dev", "proc", "tmp")


def image_steps(policy: Policy, host: Host) -> tuple[Step, ...]:
    """Return the steps of the policy's image; raises `HostUnsupported` where its mode can't be had here."""
    if policy.filesystem.mode == "independent":
        check_independent(host)
    if policy.isolation.image == IMAGE_HOST:
        return (*_host_root(policy, host), *synthetic_files(policy))
    return _directory_root(policy, host)


def check_independent(host: Host) -> None:
    """Raise `HostUnsupported` where an overlay on a tmpfs is not possible or not sound."""
    need = f"kernel {OVERLAY_KERNEL[0]}.{OVERLAY_KERNEL[1]}"
    if not host.is_root:
        raise HostUnsupported(
            "file system mode 'independent' for an ordinary user: owners can't be mapped on an overlay",
            "Run as root, or use mode 'workspace'.",
        )
    if not host.overlay:
        raise HostUnsupported(
            "file system mode 'independent': overlayfs is missing", "Run: modprobe overlay"
        )
    if host.kernel < OVERLAY_KERNEL:
        raise HostUnsupported(
            f"file system mode 'independent' on kernel {host.kernel[0]}.{host.kernel[1]}: removing a directory "
            "of the image fails there",
            f"Use {need} or newer, or mode 'workspace'.",
        )


def check_mount_points(image: str, missing: tuple[str, ...]) -> None:
    """Raise `ImageError` for a read-only image that lacks directories; `missing` comes from `inspect_image`."""
    if missing:
        names = ", ".join("/" + name for name in missing)
        raise ImageError(
            image, f"lacks the directories {names}, and they can't be made in a read-only image"
        )


def _host_root(policy: Policy, host: Host) -> Iterator[Step]:
    storage = policy.storage
    yield Root("root", storage.root.size_bytes, storage.root.inodes)
    entries = {entry.path: entry for entry in host.entries}
    usr = entries.pop("usr", None)
    if usr is None:
        raise ImageError(IMAGE_HOST, "this host has no /usr")
    if policy.filesystem.mode == "independent":
        share = storage.overlay
        yield Overlay(
            "image usr",
            "/usr",
            "usr",
            share.size_bytes,
            share.inodes,
            0,
            0,
            ATTR_NOSUID | ATTR_NODEV,
        )
    else:
        yield _bind("usr")
    for entry in entries.values():
        yield _entry_step(entry)
    owner = OWNER_ROOT
    if policy.filesystem.mode == "independent":
        owner = OWNER_PAYLOAD
        yield Mkdir("root for the payload", "", 0o755, owner)
    for path in ("home", "opt", "root", "run", "srv", "var", "var/lib", "workspace"):
        yield Mkdir(f"directory {path}", path, 0o755, owner)
    yield Symlink("link var/tmp", "/tmp", "var/tmp")
    yield Symlink("link var/run", "/run", "var/run")


def _entry_step(entry: Entry) -> Step:
    if entry.kind == "link":
        return Symlink(f"link {entry.path}", entry.target, entry.path)
    return _bind(entry.path)


def _bind(path: str) -> Bind:
    return bind(f"image {path}", f"/{path}", path, READ_ONLY, optional=True)


def bind(
    name: str,
    source: str,
    path: str,
    attrs: int,
    *,
    optional: bool = False,
    owner: tuple[int, int] = (NO_MAP, NO_MAP),
) -> Bind:
    """Return the step that attaches one host file or directory, without what is mounted below it."""
    uid, gid = owner
    return Bind(
        name, source, path, attrs, recursive=False, optional=optional, map_uid=uid, map_gid=gid
    )


def _directory_root(policy: Policy, host: Host) -> tuple[Step, ...]:
    """Return the steps of an image directory, which keeps its own files where it can't be written."""
    share = policy.storage.overlay
    owner = 0 if host.is_root else NO_MAP
    root = RootTree("root", policy.isolation.image, owner, owner, share.size_bytes, share.inodes)
    writable = share.size_bytes > 0
    return (root, *synthetic_files(policy)) if writable else (root,)


def home_of(policy: Policy) -> str:
    """Return HOME: the workspace where the payload can write it, else /tmp."""
    writable = {directory.path for directory in policy.filesystem.private_dirs}
    writable |= {entry.target for entry in policy.filesystem.workspaces if entry.access == "rw"}
    return "/workspace" if "/workspace" in writable else "/tmp"


def synthetic_files(policy: Policy) -> tuple[WriteFile, ...]:
    """Return the files of /etc that would tell about the host, with values of the sandbox's own."""
    home = home_of(policy)
    hostname = policy.isolation.hostname
    root_home = home if policy.isolation.uid == 0 else "/root"
    contents = {
        "passwd": f"root:x:0:0:root:{root_home}:/bin/sh\n"
        f"{PAYLOAD_NAME}:x:1000:1000::{home}:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "group": f"root:x:0:\ntty:x:5:\n{PAYLOAD_NAME}:x:1000:\nnogroup:x:65534:\n",
        "hosts": f"127.0.0.1 localhost {hostname}\n::1 localhost ip6-localhost\n",
        "hostname": f"{hostname}\n",
        # No network: the resolver fails at once instead of waiting for an answer.
        "resolv.conf": "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
        "shells": "/bin/sh\n/bin/bash\n",
    }
    return tuple(
        WriteFile(f"file etc/{name}", f"etc/{name}", 0o644, text.encode())
        for name, text in contents.items()
    )
