"""Reading the policy's YAML: one meaning only, bounded, and with the place of every value; no I/O.

Repeated keys, aliases that multiply, tags, and more than one document are refused: the text that a person reviews
must be what is read (cases C22). Nothing here knows what the keys mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from stockade.errors import PolicyError, PolicyProblem

#: A policy is written by hand; the longest starter is under 8 KiB.
MAX_BYTES = 256 * 1024
#: A reused anchor is fine, a bomb multiplies: ten levels of ten aliases are 10^10 values.
MAX_ALIASES = 64
#: All values after aliases are followed; 64 aliases of a 1,000-value list stay below it.
MAX_VALUES = 100_000
#: The model is 5 deep; a parser that recurses must not be led to its own limit.
MAX_DEPTH = 32

_EMPTY = "is empty: it would allow nothing and limit nothing"

Location: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Line and column of a value, from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Document:
    """What was read: plain data, and the place of each value by its keys."""

    data: Any
    places: dict[Location, Place] = field(default_factory=dict)

    def place(self, location: Location) -> Place | None:
        """Return the place of a value, or of the nearest one around it."""
        for end in range(len(location), -1, -1):
            if location[:end] in self.places:
                return self.places[location[:end]]
        return None


def read_yaml(text: str | bytes, source: str) -> Document:
    """Parse one YAML document; raises `PolicyError` with line and column."""
    size = len(text) if isinstance(text, bytes) else len(text.encode(errors="surrogatepass"))
    if size > MAX_BYTES:
        raise _error(source, f"is {size} bytes long; at most {MAX_BYTES} are read")
    try:
        node = _compose(text if isinstance(text, str) else text.decode())
        if node is None:
            raise _error(source, _EMPTY)
        document = Document(None)
        document.data = _Builder(document, source).build(node, (), 0)
        if document.data is None:
            raise _error(source, _EMPTY)
    except UnicodeDecodeError as error:
        raise _error(source, f"is not UTF-8 (byte {error.start})") from error
    except yaml.MarkedYAMLError as error:
        raise _error(source, _words(error), error.problem_mark) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise _error(source, f"is not YAML: {str(error).splitlines()[0]}") from error
    return document


def _compose(text: str) -> yaml.Node | None:
    """Return the node tree of the only document; depth and aliases are counted on the events first."""
    depth = aliases = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        aliases += isinstance(event, yaml.AliasEvent)
        if depth > MAX_DEPTH or aliases > MAX_ALIASES:
            what = (
                f"more than {MAX_ALIASES} aliases" if aliases > MAX_ALIASES else "nested too deeply"
            )
            mark: Any = event.start_mark
            raise yaml.MarkedYAMLError(problem=what, problem_mark=mark)
    return yaml.compose(text, Loader=yaml.SafeLoader)


class _Builder:
    """Turns nodes into plain data; scalars are resolved by the safe loader's own rules."""

    def __init__(self, document: Document, source: str) -> None:
        self._document = document
        self._source = source
        self._values = 0
        self._scalars = yaml.SafeLoader("")

    def build(self, node: yaml.Node, location: Location, depth: int) -> Any:  # noqa: ANN401 - YAML holds any value
        self._values += 1
        if self._values > MAX_VALUES or depth > MAX_DEPTH:
            raise self._error(
                node, f"expands to more than {MAX_VALUES} values or {MAX_DEPTH} levels"
            )
        mark = node.start_mark
        self._document.places.setdefault(location, Place(mark.line + 1, mark.column + 1))
        if isinstance(node, yaml.MappingNode):
            self._check_tag(node, "tag:yaml.org,2002:map")
            return self._mapping(node, location, depth)
        if isinstance(node, yaml.SequenceNode):
            self._check_tag(node, "tag:yaml.org,2002:seq")
            return tuple(
                self.build(item, (*location, index), depth + 1)
                for index, item in enumerate(node.value)
            )
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, location: Location, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                raise self._error(key_node, "a key must be a plain text")
            if key in result:
                raise self._error(key_node, f"the key {key!r} is repeated")
            mark = key_node.start_mark
            self._document.places[(*location, key)] = Place(mark.line + 1, mark.column + 1)
            result[key] = self.build(value_node, (*location, key), depth + 1)
        return result

    def _scalar(self, node: yaml.Node) -> Any:  # noqa: ANN401 - YAML holds any value
        if node.tag == "tag:yaml.org,2002:merge":
            raise self._error(node, "merge keys are not read; write the values out")
        try:
            return self._scalars.construct_object(node)
        except ValueError as error:
            raise self._error(node, f"not a value: {error}") from error

    def _check_tag(self, node: yaml.Node, expected: str) -> None:
        if node.tag != expected:
            raise self._error(node, f"the tag {node.tag!r} is not read")

    def _error(self, node: yaml.Node, message: str) -> PolicyError:
        return _error(self._source, message, node.start_mark)


def _words(error: yaml.MarkedYAMLError) -> str:
    return " ".join(part for part in (error.context, error.problem) if part) or "is not YAML"


def _error(source: str, message: str, mark: Any = None) -> PolicyError:  # noqa: ANN401 - PyYAML's mark
    line = None if mark is None else mark.line + 1
    column = None if mark is None else mark.column + 1
    return PolicyError((PolicyProblem("", message, line, column),), source)
