"""Reading YAML: one meaning, bounded, with places."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.errors import PolicyError
from stockade.policy import Policy, load_policy
from stockade.policy.reader import MAX_ALIASES, MAX_BYTES, MAX_DEPTH, read_yaml


def _problem(text: str | bytes) -> tuple[str, int | None, int | None]:
    with pytest.raises(PolicyError) as caught:
        read_yaml(text, "test")
    (problem,) = caught.value.problems
    return problem.message, problem.line, problem.column


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n...\n"])
def test_empty_text_is_an_error(text: str) -> None:
    """Nothing is not a policy: it would be read as "all defaults" by mistake."""
    assert "is empty" in _problem(text)[0]


def test_repeated_key_is_an_error_at_its_second_place() -> None:
    """The checker and the executor must not read different values (C22)."""
    text = "limits:\n  cpu: 1\n  memory: 1G\n  cpu: 64\n"
    assert _problem(text) == ("the key 'cpu' is repeated", 4, 3)


def test_escaped_spelling_of_a_repeated_key_is_an_error() -> None:
    """Keys are compared after escapes are resolved (C22)."""
    assert _problem('{cpu: 1, "c\\u0070u": 2}')[0] == "the key 'cpu' is repeated"


@pytest.mark.parametrize("text", ["1: a", "null: a", "[a]: b", "? {a: b}\n: c", "2001-01-01: a"])
def test_key_that_is_not_text_is_an_error(text: str) -> None:
    """Two spellings of one number would be one key for one reader and two for another."""
    assert _problem(text)[0] == "a key must be a plain text"


def test_merge_key_is_an_error() -> None:
    """`<<` hides which value holds."""
    assert "merge" in _problem("a: &x {cpu: 1}\nb: {<<: *x, cpu: 2}")[0]


@pytest.mark.parametrize("text", ["!!python/object:os.system {}", "a: !!set {b}", "a: !mine b"])
def test_tag_is_an_error(text: str) -> None:
    """Nothing but plain data is built from a policy."""
    with pytest.raises(PolicyError):
        read_yaml(text, "test")


def test_second_document_is_an_error() -> None:
    """Of two documents one would be ignored."""
    with pytest.raises(PolicyError):
        read_yaml("a: 1\n---\na: 2\n", "test")


def test_alias_bomb_is_an_error() -> None:
    """Ten levels of ten aliases are refused before they are expanded."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert "alias" in _problem("\n".join(lines))[0]


def test_few_aliases_that_multiply_are_an_error() -> None:
    """Within the alias count, what they expand to is bounded too."""
    lines = ["a0: &a0 [" + ", ".join("x" * 100) + "]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 8)]
    assert "expands to more than" in _problem("\n".join(lines))[0]


def test_alias_of_itself_is_an_error() -> None:
    """A value that holds itself has no end."""
    assert "levels" in _problem("a: &a [*a]")[0]


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_deep_nesting_is_an_error(opening: str) -> None:
    """A parser that recurses is not led to its own limit."""
    assert "nested too deeply" in _problem(opening * (MAX_DEPTH + 2))[0]


def test_huge_text_is_an_error_before_it_is_parsed() -> None:
    """The size is checked first."""
    assert str(MAX_BYTES) in _problem("a: " + "x" * MAX_BYTES)[0]


def test_text_that_is_not_utf8_is_an_error() -> None:
    """Bytes have one reading."""
    assert "UTF-8" in _problem(b"a: \xff\xfe")[0]


def test_bounds_hold_what_a_person_writes() -> None:
    """An anchor that is used a few times is fine."""
    text = "a: &a [1]\nb: [" + ", ".join(["*a"] * (MAX_ALIASES - 1)) + "]\n"
    assert len(read_yaml(text, "test").data["b"]) == MAX_ALIASES - 1


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Whatever is given, the answer is data or a PolicyError, never another exception."""
    with contextlib.suppress(PolicyError):
        read_yaml(data, "test")


@given(st.text(alphabet="versionlmts:1 \n-[]{}&*!|>'\"#%@`,?<=0xe.~", max_size=200))
def test_any_text_is_a_policy_or_refused(text: str) -> None:
    """The same for the whole way to a policy."""
    with contextlib.suppress(PolicyError):
        assert isinstance(load_policy(text), Policy)
