"""The cache of compiled programs: fast, and never trusted."""

import os
from pathlib import Path

import pytest

from stockade.isolation.seccomp import Program, cache, compile_profile, compiler
from stockade.isolation.seccomp.compiler import Compiled
from stockade.isolation.seccomp.numbers import Architecture
from stockade.isolation.seccomp.profile import Profile


@pytest.fixture(autouse=True)
def _empty_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_memory", {})


def _entry(directory: Path) -> Path:
    (file,) = directory.glob("seccomp-*.json")
    return file


def _forget_and_load(directory: Path) -> tuple[Program, bool]:
    """Load with an empty memory; the flag says whether it was compiled again."""
    compiled = []

    def compile_and_count(profile: Profile, arch: Architecture) -> Compiled:
        compiled.append(profile)
        return compiler.compile_programs(profile, arch)

    cache._memory.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "compile_programs", compile_and_count)
        program = compile_profile(cache_dir=directory)
    return program, bool(compiled)


def test_entry_is_loaded_and_not_compiled_again(tmp_path: Path) -> None:
    """A second process reads the program from disk, with the names of the notified calls."""
    first = compile_profile(cache_dir=tmp_path)
    again, compiled = _forget_and_load(tmp_path)
    assert (again, compiled) == (first, False)


def test_program_is_kept_in_memory() -> None:
    """The same object serves every sandbox of a process."""
    assert compile_profile() is compile_profile()


@pytest.mark.parametrize("position", [0, 10, 70, 5000, -1])
def test_damaged_entry_is_compiled_again(tmp_path: Path, position: int) -> None:
    """One flipped bit anywhere is noticed."""
    sound = compile_profile(cache_dir=tmp_path)
    file = _entry(tmp_path)
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)
    assert _forget_and_load(tmp_path) == (sound, True)


def test_truncated_entry_is_compiled_again(tmp_path: Path) -> None:
    """A crash in mid-write leaves nothing that is loaded."""
    sound = compile_profile(cache_dir=tmp_path)
    os.truncate(_entry(tmp_path), 900)
    assert _forget_and_load(tmp_path) == (sound, True)


def test_entry_of_another_profile_is_not_loaded_under_this_name(tmp_path: Path) -> None:
    """The checksum covers the name's digest, so entries can't be swapped."""
    weak = compile_profile(allow=("ptrace",), cache_dir=tmp_path)
    other = _entry(tmp_path)
    content = other.read_bytes()
    other.unlink()
    compile_profile(cache_dir=tmp_path)
    _entry(tmp_path).write_bytes(content)
    program, compiled = _forget_and_load(tmp_path)
    assert (program.main != weak.main, compiled) == (True, True)


def test_entry_that_others_can_write_is_compiled_again(tmp_path: Path) -> None:
    """Whoever can write it could have."""
    compile_profile(cache_dir=tmp_path)
    _entry(tmp_path).chmod(0o666)
    assert _forget_and_load(tmp_path)[1]


@pytest.mark.root
def test_entry_of_another_user_is_compiled_again(tmp_path: Path) -> None:
    """Only our own entries are loaded."""
    compile_profile(cache_dir=tmp_path)
    os.chown(_entry(tmp_path), 12345, 12345)
    assert _forget_and_load(tmp_path)[1]


def test_link_is_not_followed(tmp_path: Path) -> None:
    """A link to a sound entry elsewhere is not an entry."""
    compile_profile(cache_dir=tmp_path)
    file = _entry(tmp_path)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert _forget_and_load(tmp_path)[1]


def test_cache_that_cannot_be_written_is_only_slower(tmp_path: Path) -> None:
    """Sandboxes start without it."""
    (tmp_path / "file").write_text("")
    assert compile_profile(cache_dir=tmp_path / "file" / "below").main


def test_no_temporary_file_is_left(tmp_path: Path) -> None:
    """The entry appears whole, by rename."""
    compile_profile(cache_dir=tmp_path)
    assert [file.suffix for file in tmp_path.iterdir()] == [".json"]


@pytest.mark.parametrize(
    "changed", [{"allow": ("ptrace",)}, {"deny": ("ptrace",)}, {"arch": "aarch64"}]
)
def test_digest_covers_all_that_went_in(changed: dict[str, tuple[str, ...]]) -> None:
    """Another profile is another name."""
    assert compile_profile(**changed).digest != compile_profile().digest  # type: ignore[arg-type]
