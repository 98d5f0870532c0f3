"""The versioned policy file: models, reading, errors with their place; pure, no I/O.

The parts `isolation`, `limits` and `filesystem` stand in files of their own; later parts get theirs.
"""

from stockade.policy.document import DEFAULT_POLICY, Policy
from stockade.policy.filesystem import Filesystem, Workspace, WorkspaceLimit, WritableModel
from stockade.policy.isolation import IMAGE_HOST, Isolation
from stockade.policy.limits import Limits
from stockade.policy.loader import load_policy, policy_from, with_isolation
from stockade.policy.storage import Share, Storage

__all__ = [
    "DEFAULT_POLICY",
    "IMAGE_HOST",
    "Filesystem",
    "Isolation",
    "Limits",
    "Policy",
    "Share",
    "Storage",
    "Workspace",
    "WorkspaceLimit",
    "WritableModel",
    "load_policy",
    "policy_from",
    "with_isolation",
]
