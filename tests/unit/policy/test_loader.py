"""From text to policy: every fault with its place."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.errors import PolicyError
from stockade.policy import DEFAULT_POLICY, Policy, load_policy, policy_from

SCHEMA = Path(__file__).with_name("policy_schema.json")


def _problems(text: str) -> list[tuple[str, int | None, str]]:
    with pytest.raises(PolicyError) as caught:
        load_policy(text, "p.yaml")
    return [(problem.path, problem.line, problem.message) for problem in caught.value.problems]


def test_smallest_policy_is_the_default() -> None:
    """`version: 1` alone means the built-in policy."""
    assert load_policy("version: 1") == DEFAULT_POLICY


def test_default_is_what_the_specification_says() -> None:
    """R7 and R8: half a core, 512 MB, 64 processes, /workspace and /output, container wall, image host."""
    policy = DEFAULT_POLICY
    assert (policy.limits.cpu, policy.limits.memory, policy.limits.processes) == (
        0.5,
        512 << 20,
        64,
    )
    assert (policy.isolation.level, policy.isolation.image) == ("container", "host")
    assert [entry.path for entry in policy.filesystem.private_dirs] == ["/workspace", "/output"]


def test_all_problems_are_reported_with_their_lines() -> None:
    """One error carries every fault, each where it is."""
    text = "version: 1\nlimits:\n  cpu: 0\n  memroy: 1G\nisolation:\n  level: vm\n"
    assert _problems(text) == [
        ("isolation.level", 6, "Input should be 'process', 'container' or 'microvm'"),
        ("limits.cpu", 3, "Input should be greater than or equal to 0.01"),
        ("limits.memroy", 4, "unknown key"),
    ]


def test_place_of_a_list_entry_is_its_own() -> None:
    """A fault in a list points at the entry."""
    text = "version: 1\nfilesystem:\n  workspaces:\n    - source: /a\n    - source: b\n"
    assert _problems(text) == [("filesystem.workspaces.1.source", 5, "must be an absolute path")]


@pytest.mark.parametrize(
    "text",
    [
        "- 1",
        "just text",
        "limits: {}",
        "version: 2",
        "version: '1'",
        "version: true",
        "version: 1.0",
    ],
)
def test_wrong_head_is_an_error(text: str) -> None:
    """A file that does not say `version: 1` is not read as one."""
    assert _problems(text)


@pytest.mark.parametrize("key", ["Limits", "limits ", "permissions", "__class__"])
def test_unknown_key_is_an_error(key: str) -> None:
    """A misspelt rule would protect nothing."""
    assert _problems(f"version: 1\n{json.dumps(key)}: {{}}")[0][2] == "unknown key"


@pytest.mark.parametrize(
    "text",
    [
        "isolation: {allow: []}",
        "isolation: {deny: []}",
        "filesystem: {writable: []}",
        "filesystem: {workspaces: []}",
        "filesystem: {toolchains: []}",
        "limits: {accept_missing: []}",
    ],
)
def test_empty_list_is_an_error(text: str) -> None:
    """An empty list may mean nothing or everything, so it means neither."""
    assert "at least 1 item" in _problems(f"version: 1\n{text}")[0][2]


@pytest.mark.parametrize(
    "text",
    [
        "limits: {processes: '64'}",
        "limits: {processes: 64.0}",
        "limits: {processes: true}",
        "limits: {cpu: '1'}",
        "limits: {cpu: .inf}",
        "limits: {cpu: .nan}",
        "isolation: {sys: 'yes'}",
        "isolation: {sys: 1}",
        "isolation: {env: {PATH: 1}}",
        "isolation: {env: {'A=B': x}}",
        'isolation: {env: {A: "a\\0b"}}',
        'isolation: {env: {A: "a\\u202eb"}}',
        "isolation: {hostname: 'a b'}",
        "isolation: {hostname: -a}",
        "isolation: {uid: 5}",
        "isolation: {uid: true}",
        "isolation: {uid: false}",
        "isolation: {image: relative/path}",
        "isolation: {image: /}",
        "isolation: {image: /a/../b}",
        "isolation: {profile: ../x}",
        "isolation: {allow: ['Mount']}",
        "isolation: {allow: [ptrace], deny: [ptrace]}",
        "limits: null",
    ],
)
def test_value_of_the_wrong_kind_is_an_error(text: str) -> None:
    """Nothing is converted: what was written is what is meant."""
    assert _problems(f"version: 1\n{text}")


def test_digest_is_of_all_values() -> None:
    """Equal policies have one digest, however they are written; another value has another."""
    one = load_policy("version: 1\nlimits: {memory: 1G}")
    assert one.digest == load_policy("limits: {memory: 1073741824}\nversion: 1").digest
    assert one.digest != DEFAULT_POLICY.digest


def test_policy_is_frozen() -> None:
    """A policy that was checked can't change afterwards."""
    with pytest.raises(ValueError, match="frozen"):
        DEFAULT_POLICY.limits.cpu = 8  # type: ignore[misc]


def test_policy_can_be_built_in_a_program() -> None:
    """The same checks hold for a dict; lists and sizes are read as in the file."""
    policy = policy_from(
        {"version": 1, "limits": {"memory": "1G"}, "isolation": {"allow": ["ptrace"]}}
    )
    assert (policy.limits.memory, policy.isolation.allow) == (1 << 30, ("ptrace",))


@given(
    st.builds(
        dict,
        cpu=st.floats(0.01, 64),
        memory=st.integers(16 << 20, 1 << 40),
        processes=st.integers(1, 100_000),
        output=st.integers(1, 1 << 30),
        timeout=st.integers(1, 100_000).map("{}ms".format),
    )
)
def test_policy_survives_being_written_and_read(limits: dict[str, object]) -> None:
    """What `stockade plan` writes out is what was read."""
    policy = policy_from({"limits": limits})
    again = policy_from(policy.model_dump(mode="json", exclude_defaults=True))
    assert again.digest == policy.digest


def test_schema_is_the_recorded_one() -> None:
    """A change to the policy file's language needs a decision on its version (style 24)."""
    assert Policy.model_json_schema() == json.loads(SCHEMA.read_text())
