"""Attacks over the network: no way out, no way to the host's services, no strange socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.applicability import not_applicable
from tests.attack.places import Inside, Outside

pytestmark = pytest.mark.attack


@pytest.fixture
def listener() -> Iterator[int]:
    """Return the port of a service on the host's loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


CONNECT = "socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"


def test_a_service_on_the_hosts_loopback_is_not_reached(
    inside: Inside, outside: Outside, listener: int
) -> None:
    """127.0.0.1 inside is the sandbox's own."""
    assert outside.attempt(CONNECT, "127.0.0.1", str(listener)) == "OK"
    assert inside.attempt(CONNECT, "127.0.0.1", str(listener)) == "ECONNREFUSED"


@pytest.mark.parametrize("spelling", ["0.0.0.0", "localhost", "127.1", "::ffff:127.0.0.1", "0"])
def test_no_spelling_of_loopback_reaches_the_host(
    spelling: str, inside: Inside, outside: Outside, listener: int
) -> None:
    """Nor is it under another name."""
    if outside.attempt(CONNECT, spelling, str(listener)) != "OK":
        not_applicable(f"{spelling} does not reach the host's own services either")
    assert inside.attempt(CONNECT, spelling, str(listener)) in (
        "ECONNREFUSED",
        "ENETUNREACH",
        "EADDRNOTAVAIL",
    )


def test_an_abstract_socket_of_the_host_is_not_reached(inside: Inside, outside: Outside) -> None:
    """Abstract names belong to the network namespace."""
    name = "stockade-attack-abstract"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        connect = "socket.socket(socket.AF_UNIX).connect('\\0' + sys.argv[1])"
        assert outside.attempt(connect, name) == "OK"
        assert inside.attempt(connect, name) == "ECONNREFUSED"


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "169.254.169.254", "10.0.0.1", "192.168.1.1", "198.18.0.1", "255.255.255.255"],
)
def test_there_is_no_route_out(address: str, inside: Inside, outside: Outside) -> None:
    """A datagram to any address leaves the host's namespace; inside there is no network to send it into."""
    send = """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
s.connect((sys.argv[1], 9))
"""
    if outside.attempt(send, address) != "OK":
        not_applicable(f"this host has no route to {address}")
    assert inside.attempt(send, address) == "ENETUNREACH"


def test_there_is_no_route_out_by_ipv6(inside: Inside) -> None:
    """Nor by IPv6."""
    send = "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).connect(('2001:4860:4860::8888', 53))"
    assert inside.attempt(send) in ("ENETUNREACH", "EADDRNOTAVAIL", "EAFNOSUPPORT")


def test_the_only_interface_is_loopback(inside: Inside, outside: Outside) -> None:
    """The namespace is the sandbox's own."""
    names = "print(*(name for _, name in socket.if_nameindex()))"
    assert inside.attempt(names) == "OK lo"
    number = "print(os.readlink('/proc/self/ns/net'))"
    assert inside.attempt(number) != outside.attempt(number)


def test_names_are_not_resolved_by_the_host(inside: Inside) -> None:
    """A look-up fails at once: there is no resolver inside, and the host's is not asked."""
    look = """
try:
    socket.getaddrinfo("example.com", 80)
except socket.gaierror as error:
    print("failed")
"""
    assert inside.attempt(look) == "OK failed"


FAMILIES = [
    ("packet", 17, "SOCK_RAW", "EAFNOSUPPORT"),
    ("packet datagram", 17, "SOCK_DGRAM", "EAFNOSUPPORT"),
    ("vsock", 40, "SOCK_STREAM", "EPERM"),
    ("alg", 38, "SOCK_SEQPACKET", "EAFNOSUPPORT"),
    ("xdp", 44, "SOCK_RAW", "EAFNOSUPPORT"),
    ("raw", 2, "SOCK_RAW", "EPERM"),
    ("raw IPv6", 10, "SOCK_RAW", "EPERM"),
]


@pytest.mark.parametrize(
    ("name", "family", "kind", "answer"), FAMILIES, ids=[row[0] for row in FAMILIES]
)
def test_a_socket_of_another_family_is_refused(
    name: str, family: int, kind: str, answer: str, inside: Inside, outside: Outside
) -> None:
    """The kernel's code for it is never reached, whether or not the host has it."""
    plain = "checked(libc.socket(int(sys.argv[1]), getattr(socket, sys.argv[2]), int(sys.argv[3])))"
    make = f"libc.unshare(0x50000000); {plain}"
    protocol = {"raw": 255, "raw IPv6": 58}.get(name, 0)
    if outside.attempt(make, str(family), kind, str(protocol)) in (
        "EAFNOSUPPORT",
        "ESOCKTNOSUPPORT",
        "EPROTONOSUPPORT",
    ):
        not_applicable(f"this kernel has no sockets of family {name}")
    assert inside.attempt(plain, str(family), kind, str(protocol)) == answer


NETLINK = {
    "sock_diag": 4, "netfilter": 12, "audit": 9, "connector": 11, "kobject_uevent": 15, "generic": 16, "xfrm": 6,
    "selinux": 7,
}  # fmt: skip


@pytest.mark.parametrize("name", NETLINK)
def test_a_netlink_protocol_but_routing_is_refused(
    name: str, inside: Inside, outside: Outside
) -> None:
    """Of netlink only NETLINK_ROUTE is left, which programs list interfaces with."""
    make = "socket.socket(16, socket.SOCK_RAW, int(sys.argv[1]))"
    number = str(NETLINK[name])
    if outside.attempt(make, number) == "EPROTONOSUPPORT":
        not_applicable(f"this kernel has no netlink protocol {name}")
    assert outside.attempt(make, number) == "OK"
    assert inside.attempt(make, number) == "EPROTONOSUPPORT"
    assert inside.attempt("socket.socket(16, socket.SOCK_RAW, 0)") == "OK"


@pytest.mark.parametrize("kind", [5, 4, 10], ids=["seqpacket", "rdm", "packet"])
@pytest.mark.parametrize("protocol", [132, 262, 33], ids=["sctp", "mptcp", "dccp"])
def test_a_strange_protocol_over_ip_is_refused(kind: int, protocol: int, inside: Inside) -> None:
    """SCTP, MPTCP and DCCP, and types other than stream and datagram, are code that nobody inside needs."""
    found = inside.attempt(f"socket.socket(2, {kind}, {protocol})")
    assert found in ("EPROTONOSUPPORT", "EPERM")


@pytest.mark.parametrize("protocol", [132, 262, 136], ids=["sctp", "mptcp", "udplite"])
def test_a_strange_protocol_of_an_ordinary_type_is_refused(protocol: int, inside: Inside) -> None:
    """The type alone does not decide."""
    assert inside.attempt(f"socket.socket(2, 1, {protocol})") == "EPROTONOSUPPORT"


def test_no_address_can_be_given_to_an_interface(inside: Inside, outside: Outside) -> None:
    """Without a capability, loopback stays as the launcher left it."""
    add = """
import struct
s = socket.socket(2, 2)
request = struct.pack("16sHH4s8x", b"lo:1", 2, 0, socket.inet_aton("10.1.2.3"))
if sys.argv[1:] == ["--apart"]:
    libc.unshare(0x50000000 if os.geteuid() else 0x40000000)
    s = socket.socket(2, 2)
fcntl.ioctl(s, 0x8916, request)
"""
    assert outside.attempt(add, "--apart") == "OK"
    assert inside.attempt(add) == "EPERM"


def test_a_low_port_can_not_be_taken(inside: Inside, outside: Outside) -> None:
    """Ports under 1024 belong to whoever has the capability."""
    take = """
if sys.argv[1:] == ["--apart"]:
    checked(libc.unshare(0x50000000 if os.geteuid() else 0x40000000))
socket.socket().bind(("0.0.0.0", 53))
"""
    assert outside.attempt(take, "--apart") == "OK"
    assert inside.attempt(take) in ("EACCES", "EPERM")


URING_SOCKET = r"""
import ctypes, mmap, os, socket, struct, sys, errno
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
params = bytearray(120)
fd = libc.syscall(425, 4, (ctypes.c_char * 120).from_buffer(params))
if fd < 0:
    sys.exit(print(errno.errorcode[ctypes.get_errno()]))
sq_off = struct.unpack_from("10I", params, 40)
cq_off = struct.unpack_from("10I", params, 80)
entries = struct.unpack_from("2I", params, 0)
ring = mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
sqes = mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0x10000000)
struct.pack_into("=BBHi", sqes, 0, 45, 0, 0, socket.AF_INET)  # IORING_OP_SOCKET
struct.pack_into("=QQII", sqes, 8, socket.SOCK_STREAM, 0, 0, 0)
struct.pack_into("I", ring, sq_off[6], 0)
struct.pack_into("I", ring, sq_off[1], 1)
libc.syscall(426, fd, 1, 1, 1, 0, 0)
result = struct.unpack_from("=Qi", ring, cq_off[5])[1]
print("socket" if result >= 0 else errno.errorcode[-result])
"""


def test_io_uring_makes_no_socket(inside: Inside, outside: Outside) -> None:
    """C04: a ring makes a socket where socket(2) is filtered; inside there is no ring."""
    assert outside.python(URING_SOCKET) == "socket"
    assert inside.python(URING_SOCKET) in ("EPERM", "ENOSYS")


C04 = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for nr in (425, 426, 427):
    ctypes.set_errno(0)
    libc.syscall(nr, 1, 0, 0, 0, 0, 0)
    print(ctypes.get_errno())
"""


def test_every_call_of_io_uring_is_refused(inside: Inside, outside: Outside) -> None:
    """C04 as it was reported: EPERM or ENOSYS inside; outside each call reaches the kernel."""
    assert not {"1", "38"} & set(outside.python(C04).split())
    assert set(inside.python(C04).split()) <= {"1", "38"}


def test_a_socket_passed_in_does_not_come_from_the_host(inside: Inside, outside: Outside) -> None:
    """Descriptors can be passed between processes inside; the payload has no socket to the host to receive on."""
    count = """
paths = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
print(sum(os.readlink(path).startswith("socket:") for path in paths if os.path.lexists(path)))
"""
    assert inside.attempt(count) == "OK 0"
    with socket.socket() as kept:
        kept.set_inheritable(True)
        found = outside.attempt(count, close_fds=False)
        assert int(found.split()[1]) > 0
