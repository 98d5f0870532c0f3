"""Which files a sandbox shows: the same for ours and each peer, so that no one has fewer mounts to make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stockade.isolation.host import probe_host

#: What ours puts storage of the sandbox's own on by default; peers get a tmpfs there too.
PRIVATE = ("/tmp", "/workspace", "/output")


@dataclass(frozen=True, slots=True)
class View:
    """Read-only binds (each at its own path), symbolic links as (target, path), tmpfs; or one directory as the root."""

    image: str
    binds: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    private: tuple[str, ...] = PRIVATE

    @property
    def root(self) -> str | None:
        """The directory that is the root; None for a view of the host."""
        return None if self.image == "host" else self.image

    def __str__(self) -> str:
        if self.root:
            return f"directory {self.root}"
        return f"the host's /usr and {len(self.binds) - 1} entries of /etc, read-only"


def view_of(image: str) -> View:
    """Return the view for an image of ours: `host`, or a directory that holds a root file system."""
    if image != "host":
        return View(str(Path(image).resolve()))
    entries = probe_host().entries
    return View(
        image,
        binds=tuple(f"/{entry.path}" for entry in entries if entry.kind != "link"),
        links=tuple((entry.target, f"/{entry.path}") for entry in entries if entry.kind == "link"),
    )


def lean(view: View) -> View:
    """Return the smallest view in which /bin/true runs: /usr, the links to it, and /tmp."""
    if view.root:
        return view
    links = tuple((target, path) for target, path in view.links if path.count("/") == 1)
    return View(view.image, ("/usr",), links, ("/tmp",))
