"""Attacks through /proc: what it shows of the host and the cell, and what can be written there."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade import Sandbox
from stockade.runtime.spawn import cell_path
from tests.applicability import not_applicable
from tests.attack.conftest import MakeInside
from tests.attack.places import Inside, Outside, has_own_id, is_root

pytestmark = pytest.mark.attack

SECRET = "sk-live-0123456789abcdefghij"
READ = "print(len(open(sys.argv[1], 'rb', buffering=0).read(64)))"
OPEN_TO_WRITE = "os.open(sys.argv[1], os.O_WRONLY)"


def existing(path: str) -> str:
    """Return a path that the host has; a kernel may be built without it."""
    if not os.path.lexists(path):
        not_applicable(f"this kernel has no {path}")
    return path


@pytest.mark.parametrize(
    "name",
    [
        "cmdline", "key-users", "kallsyms", "iomem", "ioports",
        *(
            pytest.param(name, marks=pytest.mark.root)
            for name in ("kcore", "keys", "timer_list", "slabinfo", "vmallocinfo", "kpagecount", "kpageflags")
        ),
    ],
)  # fmt: skip
def test_a_file_that_shows_the_kernel_is_empty(name: str, inside: Inside, outside: Outside) -> None:
    """What reads as the kernel's state outside is the null device inside."""
    path = existing(f"/proc/{name}")
    assert outside.attempt(READ, path) not in ("OK 0", "EPERM", "EACCES", "ENOENT")
    assert inside.attempt(READ, path) == "OK 0"


@pytest.mark.parametrize("name", ["bus", "fs", "irq", "tty"])
def test_a_directory_that_shows_the_kernel_is_empty(
    name: str, inside: Inside, outside: Outside
) -> None:
    """What lists drivers and file systems outside lists nothing inside."""
    path = existing(f"/proc/{name}")
    listing = "print(len(os.listdir(sys.argv[1])))"
    found = outside.attempt(listing, path)
    if found == "OK 0":
        not_applicable(f"{path} is empty on this host")
    assert found.startswith("OK ")
    assert inside.attempt(listing, path) == "OK 0"


@pytest.mark.root
def test_sysrq_can_not_be_triggered(inside: Inside, outside: Outside) -> None:
    """Root outside may open the trigger; inside its place holds the null device, and even that is not writable."""
    path = existing("/proc/sysrq-trigger")
    assert outside.attempt(OPEN_TO_WRITE, path) == "OK"
    assert inside.attempt(OPEN_TO_WRITE, path) == "EACCES"
    assert inside.python(f"import os; print(os.stat({path!r}).st_rdev)") == str(os.makedev(1, 3))


@pytest.mark.parametrize(
    "name",
    [
        "kernel/core_pattern", "kernel/hostname", "kernel/modprobe", "kernel/sysrq", "kernel/yama/ptrace_scope",
        "kernel/randomize_va_space", "kernel/unprivileged_bpf_disabled", "kernel/shmmax", "vm/drop_caches",
        "vm/overcommit_memory", "net/ipv4/ip_forward", "kernel/ns_last_pid", "fs/file-max",
    ],
)  # fmt: skip
@pytest.mark.root
def test_a_kernel_setting_can_not_be_written(name: str, inside: Inside, outside: Outside) -> None:
    """Root outside may open the setting for writing; inside the file system is read-only."""
    path = existing(f"/proc/sys/{name}")
    assert outside.attempt(OPEN_TO_WRITE, path) == "OK"
    assert inside.attempt(OPEN_TO_WRITE, path) in ("EROFS", "EACCES", "ENOENT")


@pytest.mark.parametrize(
    "name", ["oom_score_adj", "coredump_filter", "comm", "clear_refs", "timerslack_ns"]
)
def test_a_process_can_not_write_its_own_proc_files(
    name: str, inside: Inside, outside: Outside
) -> None:
    """Outside a process may make itself the last one to be killed, and more; inside /proc is read-only."""
    path = existing(f"/proc/self/{name}")
    assert outside.attempt(OPEN_TO_WRITE, path) == "OK"
    assert inside.attempt(OPEN_TO_WRITE, path) == "EROFS"


@pytest.fixture
def neighbour() -> Iterator[int]:
    """Return the id of another process of this user, the control for looking at the cell."""
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        yield process.pid
        process.kill()


#: What each entry gives away when it can be followed or read.
OTHERS = [
    "environ",
    "mem",
    "maps",
    "root/",
    "cwd/",
    "exe",
    "fd/0",
    "status",
    "cmdline",
    "ns/user",
    "task",
    "io",
]


@pytest.mark.parametrize("entry", OTHERS)
def test_the_cell_can_not_be_seen(
    entry: str, inside: Inside, outside: Outside, neighbour: int
) -> None:
    """An entry of another process opens outside; of process 1 inside it does not even exist."""
    look = "os.open(sys.argv[1], os.O_RDONLY if not sys.argv[1].endswith('/') else os.O_PATH)"
    assert outside.attempt(look, f"/proc/{neighbour}/{entry}") == "OK"
    found = inside.attempt(look, f"/proc/1/{entry}")
    if has_own_id(inside.sandbox):
        assert found == "ENOENT"
    else:
        # With a single id hidepid is off, for the cell itself must see its children: names show, contents do not.
        assert found == ("OK" if entry in ("status", "cmdline", "task") else "EACCES")


@pytest.mark.root
def test_hidden_directories_are_the_cell_and_other_users(inside: Inside) -> None:
    """The list of processes holds the command's own and nobody else's, whom the host does see."""
    owners = inside.python(
        "import os; print({os.stat('/proc/' + n).st_uid for n in os.listdir('/proc') if n.isdigit()})"
    )
    assert owners == "{1000}"
    cell = inside.sandbox._sandbox.live.pid
    assert os.path.isdir(f"/proc/{cell}")


def test_no_environment_of_the_host_is_inside(
    make_inside: MakeInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key in the host's environment reaches an ordinary child, and no process of a sandbox."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    child = subprocess.run(["/bin/cat", "/proc/self/environ"], capture_output=True, check=True)
    assert SECRET.encode() in child.stdout
    inside = make_inside()
    found = inside.run("/bin/sh", "-c", "env; cat /proc/[0-9]*/environ; set")
    assert (SECRET in found.out, "OPENAI" in found.out) == (False, False)
    assert "HOME=/workspace" in found.out


@pytest.mark.root
def test_the_cell_has_no_environment(inside: Inside) -> None:
    """Seen by root from outside, the cell's environment and arguments hold nothing."""
    cell = inside.sandbox._sandbox.live.pid
    assert Path(f"/proc/{os.getpid()}/environ").read_bytes()
    assert Path(f"/proc/{cell}/environ").read_bytes() == b""
    assert Path(f"/proc/{cell}/cmdline").read_bytes() == b"stockade-cell\0launch\0"


REPLACE_EXE = """
# CVE-2019-5736: make the runtime execute its own program as the payload, keep it open, and write it.
import os, subprocess, sys
path = sys.argv[1] + "/run"
with open(path, "w") as file:
    file.write("#!/proc/self/exe\\n")
os.chmod(path, 0o755)
"""


def test_the_cells_program_can_not_be_executed_by_a_script(
    make_inside: MakeInside, outside: Outside, tmp_path: Path
) -> None:
    """A script whose interpreter is /proc/self/exe runs outside; inside Landlock keeps the cell's program out."""
    script = tmp_path / "run"
    script.write_text("#!/proc/self/exe\nprint('ran')\n")
    script.chmod(0o755)
    # The control's caller is Python, and so is what the script is run by.
    assert (
        outside.python("import os, sys; os.execv(sys.argv[1], sys.argv[1:])", str(script)) == "ran"
    )
    inside = make_inside()
    inside.python(REPLACE_EXE, "/workspace")
    with pytest.raises(Exception, match=r"EACCES|ENOENT|Permission"):
        inside.run("/workspace/run")
    assert inside.sandbox.is_running()


@pytest.mark.parametrize("landlock", [True, False])
def test_the_cells_program_can_not_be_opened_for_writing(
    make_inside: MakeInside, landlock: bool
) -> None:
    """Through every descriptor and link that /proc shows, the program of the cell stays as it was."""
    program = cell_path()
    before = (program.read_bytes(), program.stat().st_mode)
    inside = make_inside(isolation={"landlock": landlock})
    inside.python(REPLACE_EXE, "/workspace")
    hunt = """
import glob, os, subprocess, sys, time
found = []
child = None
try:
    child = subprocess.Popen(["/workspace/run"], stderr=subprocess.DEVNULL)
except OSError as error:
    found.append(f"start {error.errno}")
for round in range(200):
    for path in glob.glob("/proc/[0-9]*/exe"):
        try:
            target = os.readlink(path)
            if "stockade" in target:
                os.open(path, os.O_WRONLY)
                found.append("WRITABLE " + target)
        except OSError as error:
            pass
print(found)
"""
    assert "WRITABLE" not in inside.python(hunt)
    assert (program.read_bytes(), program.stat().st_mode) == before


def test_process_ids_and_names_of_the_host_stay_outside(inside: Inside, outside: Outside) -> None:
    """Outside the processes of the host are listed; inside there are a handful, none of them the host's."""
    count = "print(len([n for n in os.listdir('/proc') if n.isdigit()]))"
    assert int(outside.attempt(count).split()[1]) > 4
    # The probe itself, and with a single id, which hides nothing, the cell and the process that it keeps ahead.
    assert int(inside.attempt(count).split()[1]) <= (1 if has_own_id(inside.sandbox) else 3)


@pytest.mark.root
def test_the_groups_of_the_sandbox_do_not_name_the_host(inside: Inside) -> None:
    """/proc/self/cgroup names nothing but the sandbox's own directories."""
    here = Path("/proc/self/cgroup").read_text(encoding="ascii")
    assert ":/" in here
    lines = inside.run("/bin/cat", "/proc/self/cgroup").out.splitlines()
    names = {name for line in lines for name in line.rpartition(":")[2].split("/")}
    assert names <= {"", "..", "work", "stockade", inside.sandbox.sandbox_id}


def test_core_dumps_of_the_payload_write_nothing(
    make_inside: MakeInside, outside: Outside, tmp_path: Path
) -> None:
    """A crash with a core limit leaves a dump outside; inside the limit is 1 byte, and none appears."""
    crash = "resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20)); os.kill(os.getpid(), signal.SIGSEGV)"
    pattern = Path("/proc/sys/kernel/core_pattern").read_text(encoding="ascii").strip()
    if resource_core_hard() == 0 or pattern.startswith("|") or "/" in pattern:
        not_applicable(f"core_pattern is {pattern!r}: the host's own dumps go elsewhere")
    died = outside.run(
        "/usr/bin/python3", "-c", f"import os, resource, signal; {crash}", cwd=tmp_path
    )
    assert died.status == 139
    assert [entry.name for entry in tmp_path.iterdir()]
    inside = make_inside()
    inside.run("/bin/sh", "-c", "kill -SEGV $$")
    assert inside.run("/bin/ls", "-A", "/workspace").out == ""


def resource_core_hard() -> int:
    """Return this process's hard limit for core dumps; -1 is none."""
    import resource  # noqa: PLC0415 - one use

    return resource.getrlimit(resource.RLIMIT_CORE)[1]


@pytest.mark.parametrize("way", ["setrlimit", "prlimit64"])
def test_the_core_limit_can_not_be_changed(way: str, inside: Inside, outside: Outside) -> None:
    """RLIMIT_CORE is 1 and stays so by either call: a piped core_pattern of the host ignores 0, not 1."""
    change = {
        "setrlimit": "checked(libc.setrlimit(4, struct.pack('QQ', 0, 0)))",
        "prlimit64": "checked(libc.prlimit(0, 4, struct.pack('QQ', 0, 0), None))",
    }[way]
    assert outside.attempt(change) == "OK"
    assert inside.attempt(change) == "EINVAL"
    assert inside.attempt("print(resource.getrlimit(resource.RLIMIT_CORE))") == "OK (1, 1)"


def test_the_devices_are_harmless(inside: Inside, outside: Outside) -> None:
    """/dev holds six devices and terminals; outside it holds disks and memory too."""
    listing = """
import os, stat
mode = lambda name: stat.S_IFMT(os.lstat("/dev/" + name).st_mode)
print(*sorted(name for name in os.listdir("/dev") if mode(name) in (stat.S_IFCHR, stat.S_IFBLK)))
"""
    assert len(outside.python(listing).split()) > 10
    assert inside.python(listing) == "full null random tty urandom zero"


@pytest.mark.root
@pytest.mark.parametrize(
    ("kind", "device"), [("memory", (1, 1)), ("disk", (254, 0)), ("console", (5, 1))]
)
def test_a_device_can_not_be_made(
    kind: str, device: tuple[int, int], inside: Inside, outside: Outside, tmp_path: Path
) -> None:
    """Root outside makes any device; inside mknod(2) is refused."""
    mode = stat.S_IFBLK if kind == "disk" else stat.S_IFCHR
    make = f"os.mknod(sys.argv[1], {mode | 0o600}, os.makedev{device})"
    assert outside.attempt(make, str(tmp_path / "device")) == "OK"
    assert inside.attempt(make, "/workspace/device") == "EPERM"


def test_proc_is_mounted_with_hidepid_and_read_only(sandbox: Sandbox) -> None:
    """The mount table says what the kernel really does."""
    line = sandbox.commands.run("grep ' /proc proc ' /proc/self/mounts").stdout
    options = set(line.split()[3].split(","))
    assert {"ro", "nosuid", "nodev", "noexec", "hidepid=invisible"} <= options


def test_every_mount_is_locked_down(sandbox: Sandbox) -> None:
    """Every mount is nosuid, and what is writable can hold no device, but for the devices themselves."""
    mounts = [
        line.split() for line in sandbox.commands.run("cat /proc/self/mounts").stdout.splitlines()
    ]
    options = {fields[1]: set(fields[3].split(",")) for fields in mounts}
    assert all("nosuid" in found for found in options.values())
    loose = [point for point, found in options.items() if "nodev" not in found and "rw" in found]
    assert all(point.startswith(("/dev/", "/proc/")) for point in loose)


def test_the_maps_of_ids_are_what_was_asked_for(sandbox: Sandbox) -> None:
    """The id maps read back inside as the plan has them: no more ids than the sandbox's own."""
    live = sandbox._sandbox.live
    expected = [
        [line.inside, line.outside, line.count] for line in live.plan.launch.identity.uid_map
    ]
    lines = sandbox.commands.run("cat /proc/self/uid_map").stdout.splitlines()
    found = [[int(word) for word in line.split()] for line in lines]
    # A namespace shows a map in terms of the one that looks; with one id an inner one stands between.
    assert sum(count for *_ids, count in found) == sum(count for *_ids, count in expected)
    if is_root():
        assert [inside for inside, *_rest in found] == [0]
        on_host = Path(f"/proc/{live.pid}/uid_map").read_text(encoding="ascii").split()
        assert list(map(int, on_host)) == expected[0]


def test_the_hosts_devices_are_not_touched(
    inside: Inside, outside: Outside, tmp_path: Path
) -> None:
    """The device nodes are the host's own: their times and modes can't be changed from inside, and they still work."""
    own = tmp_path / "file"
    own.touch()
    for change in ("os.utime(sys.argv[1])", "os.chmod(sys.argv[1], 0o600)"):
        assert outside.attempt(change, str(own)) == "OK"
        assert inside.attempt(change, "/dev/null") in ("EROFS", "EPERM", "EACCES")
    assert (
        inside.attempt(
            "print(open('/dev/null', 'w').write('x'), len(open('/dev/zero', 'rb').read(4)))"
        )
        == "OK 1 4"
    )


SYS = [
    "/sys/kernel/uevent_helper",
    "/sys/power/state",
    "/sys/kernel/mm/transparent_hugepage/enabled",
]


@pytest.mark.root
@pytest.mark.parametrize("path", SYS)
def test_sys_can_not_be_written_where_it_is_shown(
    path: str, make_inside: MakeInside, outside: Outside
) -> None:
    """A policy may ask for /sys; it is read-only, root inside or not."""
    existing(path)
    assert outside.attempt(OPEN_TO_WRITE, path) == "OK"
    inside = make_inside(isolation={"sys": True, "uid": 0})
    assert inside.attempt(OPEN_TO_WRITE, path) in ("EROFS", "EACCES", "EPERM")


def test_sys_shows_no_cgroups(make_inside: MakeInside, outside: Outside) -> None:
    """The control groups that hold the limits are not in the sandbox's /sys."""
    assert outside.attempt("print(len(os.listdir('/sys/fs/cgroup')) > 0)") == "OK True"
    inside = make_inside(isolation={"sys": True})
    assert inside.attempt("print(os.listdir('/sys/fs/cgroup'))") in ("OK []", "ENOENT", "EACCES")


def test_terminals_of_the_host_are_not_used_up(make_inside: MakeInside, outside: Outside) -> None:
    """The sandbox's devpts has its own number of terminals, and the host's are not among them."""
    inside = make_inside()
    take = "n = 0\nwhile n < 100:\n    os.openpty()\n    n += 1\n    os.write(2, b'.')"
    assert inside.attempt(take) in ("ENOSPC", "EIO", "ENOENT")
    assert inside.attempt("print(os.listdir('/dev/pts'))") == "OK ['ptmx']"
    assert outside.attempt("os.openpty()") == "OK"


@pytest.mark.parametrize("name", ["seed entropy", "clear the pool", "reseed"])
@pytest.mark.root
def test_the_hosts_random_pool_is_not_changed(name: str, inside: Inside) -> None:
    """The kernel's generator is one for all: adding to its count, clearing and reseeding need a capability."""
    code = {"seed entropy": 0x40085203, "clear the pool": 0x5206, "reseed": 0x5207}[name]
    assert (
        inside.attempt(f"fcntl.ioctl(os.open('/dev/urandom', os.O_RDWR), {code}, bytes(16))")
        == "EPERM"
    )
