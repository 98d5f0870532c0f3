"""From a policy's text to a `Policy`, or to every fault in it with its line; no I/O."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from stockade.errors import PolicyError, PolicyProblem
from stockade.policy.document import Policy
from stockade.policy.isolation import Isolation
from stockade.policy.reader import Document, Location, read_yaml

#: How many problems one error carries; a file that is not a policy at all has thousands.
MAX_PROBLEMS = 20


def load_policy(text: str | bytes, source: str = "policy") -> Policy:
    """Read a policy file's text; `source` names it in errors. Raises `PolicyError` with each problem's place."""
    document = read_yaml(text, source)
    if not isinstance(document.data, dict):
        raise PolicyError(
            (_problem("must be a mapping that starts with 'version: 1'", (), document),), source
        )
    if "version" not in document.data:
        raise PolicyError(
            (_problem("is missing; write 'version: 1'", ("version",), document),), source
        )
    return _validate(document.data, source, document)


def policy_from(data: dict[str, Any], source: str = "policy") -> Policy:
    """Check a policy that was built in a program; raises `PolicyError`."""
    return _validate(data, source, Document(data))


def with_isolation(policy: Policy, changes: dict[str, Any], source: str = "arguments") -> Policy:
    """Return the policy with some keys of `isolation` replaced; raises `PolicyError`.

    The other parts are kept as they are: dumped and read again, a duration would change its unit.
    """
    document = Document({"isolation": changes})
    try:
        isolation = Isolation.model_validate(
            {**policy.isolation.model_dump(exclude_unset=True), **changes}
        )
        return Policy(isolation=isolation, limits=policy.limits, filesystem=policy.filesystem)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[:MAX_PROBLEMS]
        problems = tuple(
            _problem(_words(item), ("isolation", *item["loc"]), document) for item in found
        )
        raise PolicyError(problems, source) from error


def _validate(data: dict[str, Any], source: str, document: Document) -> Policy:
    try:
        return Policy.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[:MAX_PROBLEMS]
        problems = tuple(_problem(_words(item), item["loc"], document) for item in found)
        raise PolicyError(problems, source) from error


def _problem(message: str, location: Location, document: Document) -> PolicyProblem:
    place = document.place(location)
    path = ".".join(str(part) for part in location)
    return PolicyProblem(
        path,
        message,
        None if place is None else place.line,
        None if place is None else place.column,
    )


def _words(item: Any) -> str:  # noqa: ANN401 - pydantic_core.ErrorDetails
    if item["type"] == "extra_forbidden":
        return "unknown key"
    return str(item["msg"]).removeprefix("Value error, ")
