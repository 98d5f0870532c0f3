//! Who a process is: ids, capabilities, namespaces, filters.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{Errno, SysResult, check, check_int};

/// setresuid(2) on all three ids, for the calling thread only.
pub fn set_uid(uid: u32) -> SysResult<()> {
    // SAFETY: integers only.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }).map(drop)
}

/// setresgid(2) on all three ids, for the calling thread only.
pub fn set_gid(gid: u32) -> SysResult<()> {
    // SAFETY: integers only.
    check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) }).map(drop)
}

/// setgroups(2), for the calling thread only.
pub fn set_groups(groups: &[u32]) -> SysResult<()> {
    // SAFETY: the pointer and count describe `groups`.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) }).map(drop)
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// _LINUX_CAPABILITY_VERSION_3
const CAP_VERSION: u32 = 0x2008_0522;

/// capset(2): exactly `caps` (a bit set) permitted and effective, none inheritable.
pub fn set_capabilities(caps: u64) -> SysResult<()> {
    let header = CapHeader {
        version: CAP_VERSION,
        pid: 0,
    };
    let half = |shift: u32| {
        let bits = (caps >> shift) as u32;
        CapData {
            effective: bits,
            permitted: bits,
            inheritable: 0,
        }
    };
    let data = [half(0), half(32)];
    // SAFETY: header and data have the layout of version 3 and outlive the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }).map(drop)
}

/// capget(2): the permitted set.
pub fn permitted_capabilities() -> SysResult<u64> {
    let header = CapHeader {
        version: CAP_VERSION,
        pid: 0,
    };
    let mut data = [CapData::default(); 2];
    // SAFETY: as above; the kernel fills both entries.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) })?;
    let [low, high] = data;
    Ok(u64::from(low.permitted) | (u64::from(high.permitted) << 32))
}

/// prctl(2) with integer arguments.
pub fn prctl(option: libc::c_int, argument: u64) -> SysResult<libc::c_int> {
    // SAFETY: the options used here (PR_SET_*, PR_CAPBSET_*, PR_CAP_AMBIENT) take integers.
    check_int(unsafe { libc::prctl(option, argument, 0, 0, 0) })
}

/// prctl(PR_SET_NAME).
pub fn set_name(name: &CStr) -> SysResult<()> {
    // SAFETY: a NUL-terminated string that outlives the call; the kernel takes 15 bytes of it.
    check_int(unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) }).map(drop)
}

/// Take every capability out of the bounding set; needs CAP_SETPCAP.
pub fn empty_bounding_set() -> SysResult<()> {
    for cap in 0..64 {
        match prctl(libc::PR_CAPBSET_DROP, cap) {
            Ok(_) => {}
            // The kernel's last capability is passed.
            Err(error) if error.0 == libc::EINVAL && cap > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// unshare(2).
pub fn unshare(flags: libc::c_int) -> SysResult<()> {
    // SAFETY: integers only; this process has one thread.
    check_int(unsafe { libc::unshare(flags) }).map(drop)
}

/// setns(2): enter a namespace.
pub fn join_namespace(namespace: BorrowedFd, kind: libc::c_int) -> SysResult<()> {
    // SAFETY: integers only.
    check_int(unsafe { libc::setns(namespace.as_raw_fd(), kind) }).map(drop)
}

/// The network namespace that we are in, by way of a socket in it (SIOCGSKNS, netdevice(7)): /proc may be gone.
pub fn network_namespace() -> SysResult<OwnedFd> {
    const SIOCGSKNS: libc::c_ulong = 0x894C;
    let socket = datagram_socket()?;
    // SAFETY: the ioctl takes no argument and returns a new descriptor.
    unsafe {
        let fd = check_int(libc::ioctl(socket.as_raw_fd(), SIOCGSKNS as _))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

fn datagram_socket() -> SysResult<OwnedFd> {
    // SAFETY: integers only; the result is a new descriptor.
    unsafe {
        let fd = check_int(libc::socket(
            libc::AF_INET,
            libc::SOCK_DGRAM | libc::SOCK_CLOEXEC,
            0,
        ))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// sethostname(2).
pub fn set_hostname(name: &[u8]) -> SysResult<()> {
    // SAFETY: the pointer and length describe `name`.
    check_int(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }).map(drop)
}

/// struct clone_args, version 2 (with `cgroup`).
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which side of a fork this is.
#[derive(Debug)]
pub enum Forked {
    /// In the new process.
    Child,
    /// In the old one: the child's id and pidfd.
    Parent {
        /// As this PID namespace sees it.
        pid: u32,
        /// For waiting and signalling without a race.
        pidfd: OwnedFd,
    },
}

/// clone3(2) without sharing memory, like fork(2): this process has one thread, so the child may do anything.
///
/// `cgroup` is a cgroup2 directory to be born in. With CLONE_PARENT in `flags` the child is our sibling.
pub fn fork(flags: u64, cgroup: Option<BorrowedFd>) -> SysResult<Forked> {
    let mut pidfd: libc::c_int = -1;
    let sibling = flags & libc::CLONE_PARENT as u64 != 0;
    let mut args = CloneArgs {
        flags: flags | libc::CLONE_PIDFD as u64,
        pidfd: (&raw mut pidfd) as u64,
        // clone3 refuses an exit signal beside CLONE_PARENT: the sibling has ours.
        exit_signal: if sibling { 0 } else { libc::SIGCHLD as u64 },
        ..CloneArgs::default()
    };
    if let Some(directory) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = directory.as_raw_fd() as u64;
    }
    // SAFETY: no CLONE_VM and no stack, so the child is a copy; `args` has the kernel's layout.
    let pid =
        check(unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<CloneArgs>()) })?;
    if pid == 0 {
        return Ok(Forked::Child);
    }
    // SAFETY: the kernel stored a new descriptor because of CLONE_PIDFD.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Forked::Parent {
        pid: pid as u32,
        pidfd,
    })
}

/// pidfd_send_signal(2).
pub fn signal(pidfd: BorrowedFd, number: libc::c_int) -> SysResult<()> {
    // SAFETY: integers and a null siginfo.
    check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            number,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    })
    .map(drop)
}

/// waitid(2) on a pidfd: reap it.
pub fn reap(pidfd: BorrowedFd) -> SysResult<()> {
    // SAFETY: siginfo_t is plain data that the kernel fills.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        check_int(libc::waitid(
            libc::P_PIDFD,
            pidfd.as_raw_fd() as libc::id_t,
            &raw mut info,
            libc::WEXITED,
        ))
        .map(drop)
    }
}

/// setrlimit(2) for the calling process.
pub fn set_rlimit(resource: u32, soft: u64, hard: u64) -> SysResult<()> {
    let limit = libc::rlimit64 {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: the pointer outlives the call; an unknown resource is EINVAL.
    check_int(unsafe { libc::prlimit64(0, resource as _, &raw const limit, std::ptr::null_mut()) })
        .map(drop)
}

/// seccomp(2) operation and flags.
const SET_MODE_FILTER: libc::c_uint = 1;
/// SECCOMP_FILTER_FLAG_SPEC_ALLOW marks our own installations: the main filter lets only this flag pass. It changes
/// nothing here (the mitigation was set with the main filter), while FLAG_LOG would write each refusal to the host's log.
const FLAG_SPEC_ALLOW: libc::c_ulong = 1 << 2;
const FLAG_NEW_LISTENER: libc::c_ulong = 1 << 3;
/// Without it a signal storm against the caller restarts the notification for ever (Linux 5.19).
const FLAG_WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;

fn install_filter(program: &[u8], flags: libc::c_ulong) -> SysResult<libc::c_long> {
    let instructions = program.len() / size_of::<libc::sock_filter>();
    let length = u16::try_from(instructions).map_err(|_| Errno(libc::E2BIG))?;
    let program = libc::sock_fprog {
        len: length,
        filter: program.as_ptr().cast_mut().cast(),
    };
    // SAFETY: `length` instructions are in the slice; the kernel copies and checks them.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    })
}

/// Load a filter and return its notification listener.
pub fn install_main_filter(program: &[u8]) -> SysResult<OwnedFd> {
    let fd = install_filter(program, FLAG_NEW_LISTENER | FLAG_WAIT_KILLABLE_RECV)?;
    // SAFETY: with NEW_LISTENER the result is a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// Load a command's own filter on top.
pub fn install_child_filter(program: &[u8]) -> SysResult<()> {
    install_filter(program, FLAG_SPEC_ALLOW).map(drop)
}

/// The kernel's Landlock ABI; 0 where there is none.
#[must_use]
pub fn landlock_abi() -> u32 {
    const VERSION: libc::c_uint = 1;
    // SAFETY: the version query takes a null attribute.
    let abi = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            VERSION,
        )
    };
    u32::try_from(abi).unwrap_or(0)
}

#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// landlock_create_ruleset(2). The kernel takes a shorter struct from older callers; we cut it to what `abi` knows.
pub fn landlock_ruleset(abi: u32, fs: u64, scoped: u64) -> SysResult<OwnedFd> {
    let attr = RulesetAttr {
        handled_access_fs: fs,
        handled_access_net: 0,
        scoped,
    };
    let size: usize = match abi {
        0..=3 => 8,
        4..=5 => 16,
        _ => 24,
    };
    // SAFETY: `attr` has at least `size` bytes in the kernel's layout.
    let fd = check(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const attr,
            size,
            0_u32,
        )
    })?;
    // SAFETY: the result is a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

/// landlock_add_rule(2): `access` beneath `path`.
pub fn landlock_allow(ruleset: BorrowedFd, path: BorrowedFd, access: u64) -> SysResult<()> {
    const PATH_BENEATH: libc::c_uint = 1;
    let attr = PathBeneathAttr {
        allowed_access: access,
        parent_fd: path.as_raw_fd(),
    };
    // SAFETY: the packed layout is the kernel's (12 bytes).
    check(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            PATH_BENEATH,
            &raw const attr,
            0_u32,
        )
    })
    .map(drop)
}

/// landlock_restrict_self(2); needs no_new_privs.
pub fn landlock_restrict(ruleset: BorrowedFd) -> SysResult<()> {
    // SAFETY: integers only.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) })
        .map(drop)
}

/// Bring the loopback interface of this network namespace up.
pub fn loopback_up() -> SysResult<()> {
    let socket = datagram_socket()?;
    // SAFETY: `request` is a zeroed ifreq with a short name; both ioctls read and write only it.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
            *to = *from as libc::c_char;
        }
        check_int(libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCGIFFLAGS,
            &raw mut request,
        ))?;
        request.ifr_ifru.ifru_flags |= (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        check_int(libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS,
            &raw mut request,
        ))?;
    }
    Ok(())
}

/// _exit(2): without atexit handlers or unwinding.
pub fn exit_now(code: libc::c_int) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(code) }
}
