"""The policy as a whole: one frozen model per part, a digest, and the built-in default; no I/O."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BeforeValidator, model_validator

from stockade.policy._model import Model, check_int
from stockade.policy.filesystem import Filesystem
from stockade.policy.isolation import Isolation
from stockade.policy.limits import Limits
from stockade.policy.storage import Storage, divide


class Policy(Model):
    """What a session may do, from version 1 of the policy file."""

    version: Annotated[Literal[1], BeforeValidator(check_int)] = 1
    isolation: Isolation = Isolation()
    limits: Limits = Limits()
    filesystem: Filesystem = Filesystem()

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the canonical JSON of every value, defaults included."""
        data = self.model_dump(mode="json")
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def storage(self) -> Storage:
        """How the disk limit is divided."""
        return divide(self.limits, self.filesystem)

    @model_validator(mode="after")
    def _check(self) -> Policy:
        divide(self.limits, self.filesystem)
        return self


#: What holds where no policy is named: container wall, image `host`, a private workspace, no network, R7's limits.
DEFAULT_POLICY = Policy()
