//! Starting, signalling and reaping processes.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use super::{Errno, SysResult, check, check_int};

/// The calling process's id in its own PID namespace.
#[must_use]
pub fn own_pid() -> libc::pid_t {
    // SAFETY: no argument, can't fail.
    unsafe { libc::getpid() }
}

/// Send a signal to one process, or (pid -1) to all that this one may signal.
pub fn kill(pid: libc::pid_t, signal: libc::c_int) -> SysResult<()> {
    // SAFETY: integers only.
    check_int(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// What a process used, with the children that it waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user mode.
    pub user_us: u64,
    /// CPU time in the kernel.
    pub system_us: u64,
    /// Largest resident set.
    pub max_rss_kib: u64,
}

impl Usage {
    fn of(usage: &libc::rusage) -> Self {
        let microseconds =
            |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
        Self {
            user_us: microseconds(usage.ru_utime),
            system_us: microseconds(usage.ru_stime),
            max_rss_kib: usage.ru_maxrss as u64,
        }
    }
}

/// A child that ended and was reaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reaped {
    /// Its id, free for reuse from now on.
    pub pid: libc::pid_t,
    /// Its exit code, 0 when a signal ended it.
    pub code: i32,
    /// The signal that ended it, or 0.
    pub signal: u8,
    /// What it used.
    pub usage: Usage,
}

/// wait4(2) for any child, without waiting: `Ok(None)` when none has ended, ECHILD when there is none at all.
pub fn reap_any() -> SysResult<Option<Reaped>> {
    let mut status = 0;
    // SAFETY: rusage is plain data that the kernel fills, like `status`.
    let (pid, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let pid = libc::wait4(
            -1,
            &raw mut status,
            libc::WNOHANG | libc::__WALL,
            &raw mut usage,
        );
        (check_int(pid)?, usage)
    };
    if pid == 0 {
        return Ok(None);
    }
    let (code, signal) = if libc::WIFSIGNALED(status) {
        (0, libc::WTERMSIG(status) as u8)
    } else {
        (libc::WEXITSTATUS(status), 0)
    };
    let usage = Usage::of(&usage);
    Ok(Some(Reaped {
        pid,
        code,
        signal,
        usage,
    }))
}

/// getrusage(2) of all children that were reaped.
pub fn usage_of_reaped() -> SysResult<Usage> {
    // SAFETY: rusage is plain data that the kernel fills.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        check_int(libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage))?;
        Ok(Usage::of(&usage))
    }
}

/// Block every signal, and set every disposition back to its default so that children start with it.
pub fn block_signals() -> SysResult<()> {
    // struct sigaction of the kernel, all zero: SIG_DFL. libc's own refuses 32 and 33, which a parent may have ignored.
    let default = [0_u64; 4];
    let none = ptr::null::<u64>();
    for number in 1..=64 {
        // SAFETY: `default` has the size of the kernel's struct, and installs no handler. SIGKILL and SIGSTOP are refused.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                number,
                default.as_ptr(),
                none,
                8_usize,
            )
        };
    }
    set_mask(true)
}

/// Unblock every signal (in a child before exec).
pub fn unblock_signals() -> SysResult<()> {
    set_mask(false)
}

fn set_mask(full: bool) -> SysResult<()> {
    // SAFETY: sigset_t is plain data, filled by sigfillset or sigemptyset.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        if full {
            libc::sigfillset(&raw mut set);
        } else {
            libc::sigemptyset(&raw mut set);
        }
        check_int(libc::sigprocmask(
            libc::SIG_SETMASK,
            &raw const set,
            ptr::null_mut(),
        ))
        .map(drop)
    }
}

/// A nonblocking signalfd(2) for SIGCHLD.
pub fn child_signals() -> SysResult<OwnedFd> {
    // SAFETY: sigset_t is plain data; the result is a new descriptor.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        let fd = check_int(libc::signalfd(-1, &raw const set, flags))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// setsid(2).
pub fn new_session() -> SysResult<()> {
    // SAFETY: no argument.
    check_int(unsafe { libc::setsid() }).map(drop)
}

/// fchdir(2).
pub fn change_directory(directory: BorrowedFd) -> SysResult<()> {
    // SAFETY: an integer only.
    check_int(unsafe { libc::fchdir(directory.as_raw_fd()) }).map(drop)
}

/// umask(2).
pub fn set_umask(mask: u32) {
    // SAFETY: an integer; can't fail.
    unsafe { libc::umask(mask) };
}

/// dup2(2): `fd` also gets the number `target`, without close-on-exec.
pub fn duplicate_to(fd: BorrowedFd, target: libc::c_int) -> SysResult<()> {
    // SAFETY: the caller replaces only 0, 1 and 2, which no OwnedFd of this program holds.
    check_int(unsafe { libc::dup2(fd.as_raw_fd(), target) }).map(drop)
}

/// close_range(2) with CLOSE_RANGE_CLOEXEC: no descriptor from `first` on survives exec.
pub fn close_on_exec_from(first: libc::c_uint) -> SysResult<()> {
    // SAFETY: marks descriptors, closes none now.
    check(unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    })
    .map(drop)
}

/// setfsgid(2) and setfsuid(2) of the calling thread. They tell no error: compare with `file_ids`.
pub fn set_file_ids(uid: u32, gid: u32) {
    // SAFETY: integers only.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
    }
}

/// The file system ids of the calling thread: user, group.
#[must_use]
pub fn file_ids() -> (u32, u32) {
    // SAFETY: -1 is no id, so nothing changes; both return what was before.
    unsafe {
        let user = libc::syscall(libc::SYS_setfsuid, -1);
        let group = libc::syscall(libc::SYS_setfsgid, -1);
        (user as u32, group as u32)
    }
}

/// getrlimit(2): soft and hard.
pub fn rlimit(resource: u32) -> SysResult<(u64, u64)> {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel fills `limit`; an unknown resource is EINVAL.
    check_int(unsafe { libc::prlimit64(0, resource as _, ptr::null(), &raw mut limit) })?;
    Ok((limit.rlim_cur, limit.rlim_max))
}

/// A program to execute: everything allocated, so that the child only makes system calls.
#[derive(Debug)]
pub struct Program {
    candidates: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
}

impl Program {
    /// `candidates` are the paths that are tried in order.
    #[must_use]
    pub fn new(candidates: Vec<CString>, argv: Vec<CString>, env: Vec<CString>) -> Self {
        Self {
            candidates,
            argv,
            env,
        }
    }

    /// execve(2) of the first candidate that exists and may be executed, as execvpe(3) searches; returns only an error.
    #[must_use]
    pub fn execute(&self) -> Errno {
        let argv = pointers(&self.argv);
        let env = pointers(&self.env);
        let mut result = Errno(libc::ENOENT);
        for candidate in &self.candidates {
            // SAFETY: both arrays end with a null pointer and point to strings that outlive the call.
            unsafe { libc::execve(candidate.as_ptr(), argv.as_ptr(), env.as_ptr()) };
            match Errno::last() {
                Errno(libc::ENOENT | libc::ENOTDIR) => {}
                denied @ Errno(libc::EACCES) => result = denied,
                other => return other,
            }
        }
        result
    }
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    let null = std::iter::once(ptr::null());
    strings
        .iter()
        .map(|text| text.as_ptr())
        .chain(null)
        .collect()
}

/// Open a new pseudo-terminal of the devpts instance behind `multiplexer` (/dev/ptmx): master, then slave.
pub fn open_terminal(multiplexer: &CStr, rows: u16, cols: u16) -> SysResult<(OwnedFd, OwnedFd)> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: a NUL-terminated path; the results are new descriptors; TIOCSPTLCK reads one int.
    unsafe {
        let master = check_int(libc::open(multiplexer.as_ptr(), flags | libc::O_NONBLOCK))?;
        let master = OwnedFd::from_raw_fd(master);
        let unlock: libc::c_int = 0;
        check_int(libc::ioctl(
            master.as_raw_fd(),
            libc::TIOCSPTLCK,
            &raw const unlock,
        ))?;
        let slave = check_int(libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags))?;
        let slave = OwnedFd::from_raw_fd(slave);
        resize_terminal(std::os::fd::AsFd::as_fd(&master), rows, cols)?;
        Ok((master, slave))
    }
}

/// TIOCSWINSZ.
pub fn resize_terminal(terminal: BorrowedFd, rows: u16, cols: u16) -> SysResult<()> {
    let size = libc::winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the kernel reads one winsize.
    check_int(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) })
        .map(drop)
}

/// TIOCSCTTY: the calling session leader's controlling terminal.
pub fn take_terminal(terminal: BorrowedFd) -> SysResult<()> {
    // SAFETY: an integer argument.
    check_int(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) }).map(drop)
}

/// Bytes of a page.
#[must_use]
pub fn page_size() -> usize {
    // SAFETY: an integer; the value is always known.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
