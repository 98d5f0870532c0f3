//! From a START frame to a process: everything is checked and allocated here, before the clone.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use super::child::Child;
use super::confinement::Confinement;
use super::refusal::Refusal;
use super::resolve::Resolver;
use super::spare::Spare;
use crate::sys::ident::Forked;
use crate::sys::process::{self, Program};
use crate::sys::{SysResult, ident, io};
use crate::wire::codec::Bytes;
use crate::wire::message::{Start, code, start};

/// Where execvpe(3) looks when the environment has no PATH.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";
/// Directories of PATH that are tried.
const MAX_CANDIDATES: usize = 64;
const MULTIPLEXER: &std::ffi::CStr = c"/dev/ptmx";

/// A new process and our ends of what it is connected to.
#[derive(Debug)]
pub struct Spawned {
    /// Its id, inside.
    pub pid: libc::pid_t,
    /// Closed by exec, or carries a `StepError`.
    pub status: OwnedFd,
    /// Standard input, or a terminal's master.
    pub input: Option<OwnedFd>,
    /// Standard output, or the same master.
    pub output: OwnedFd,
    /// Standard error; a terminal has none.
    pub error: Option<OwnedFd>,
}

/// Both ends of a command's standard descriptors.
struct Stdio {
    input: Option<OwnedFd>,
    output: OwnedFd,
    error: Option<OwnedFd>,
    /// The command's own ends of 0, 1, 2; `None` is /dev/null for 0 and the same as before for the others.
    ends: [Option<OwnedFd>; 3],
}

/// Start a process; it may still fail before exec.
pub fn spawn(
    request: &Start,
    tag: Option<u32>,
    confinement: &Confinement,
    resolver: &Resolver,
    spare: Option<Spare>,
) -> Result<Spawned, Refusal> {
    let ids = confinement.ids(request.uid, request.gid, tag)?;
    let program = program(request)?;
    let has_terminal = request.flags & start::PTY != 0;
    // Pipes and terminals belong to the command, or it could not open /dev/stderr.
    let stdio = confinement.with_file_ids(request.uid, request.gid, || {
        if has_terminal {
            terminal(request).map_err(|e| started(e, "terminal"))
        } else {
            pipes(request.flags & start::STDIN != 0).map_err(|e| started(e, "pipes"))
        }
    })?;
    let (status, status_end) = io::pipe(libc::O_NONBLOCK).map_err(|e| started(e, "pipes"))?;
    let ends = stdio.child_ends(&confinement.null);
    let taken = spare.and_then(|spare| spare.start(request, tag, ends, status_end.as_fd()));
    if let Some(pid) = taken {
        return Ok(stdio.spawned(pid, status));
    }
    let cgroup = confinement.work_cgroup.as_ref().map(AsFd::as_fd);
    let forked = ident::fork(0, cgroup).map_err(|e| started(e, "clone"))?;
    let pid = match forked {
        Forked::Child => Child {
            confinement,
            ids,
            rlimits: &request.rlimits,
            stdio: ends,
            has_terminal,
            cwd: &request.cwd.0,
            resolver,
            program: &program,
            status: status_end,
            prepared: false,
        }
        .run(),
        Forked::Parent { pid, .. } => pid,
    };
    let pid = libc::pid_t::try_from(pid).map_err(|_| Refusal::rule(code::START, "process id"))?;
    Ok(stdio.spawned(pid, status))
}

fn started(errno: crate::sys::Errno, detail: &'static str) -> Refusal {
    Refusal::call(code::START, errno, detail)
}

impl Stdio {
    fn spawned(self, pid: libc::pid_t, status: OwnedFd) -> Spawned {
        Spawned {
            pid,
            status,
            input: self.input,
            output: self.output,
            error: self.error,
        }
    }

    fn child_ends<'a>(&'a self, null: &'a OwnedFd) -> [std::os::fd::BorrowedFd<'a>; 3] {
        let [input, output, error] = &self.ends;
        let input = input.as_ref().unwrap_or(null);
        let output = output.as_ref().unwrap_or(input);
        let error = error.as_ref().unwrap_or(output);
        [input.as_fd(), output.as_fd(), error.as_fd()]
    }
}

fn pipes(with_input: bool) -> SysResult<Stdio> {
    let (output, output_end) = io::pipe(0)?;
    let (error, error_end) = io::pipe(0)?;
    // Only our ends: O_NONBLOCK belongs to an end's description, and programs do not expect it on theirs.
    io::set_nonblocking(output.as_fd(), true)?;
    io::set_nonblocking(error.as_fd(), true)?;
    let (input, input_end) = if with_input {
        let (input_end, input) = io::pipe(0)?;
        io::set_nonblocking(input.as_fd(), true)?;
        (Some(input), Some(input_end))
    } else {
        (None, None)
    };
    Ok(Stdio {
        input,
        output,
        error: Some(error),
        ends: [input_end, Some(output_end), Some(error_end)],
    })
}

fn terminal(request: &Start) -> SysResult<Stdio> {
    let (master, slave) = process::open_terminal(MULTIPLEXER, request.rows, request.cols)?;
    let output = io::duplicate(master.as_fd())?;
    Ok(Stdio {
        input: Some(master),
        output,
        error: None,
        ends: [Some(slave), None, None],
    })
}

/// The program and its arguments, as execve(2) takes them.
pub fn program(request: &Start) -> Result<Program, Refusal> {
    let argv = strings(&request.argv)?;
    let env = strings(&request.env)?;
    let first = request.argv.first().map(|Bytes(first)| first.as_slice());
    let name = first
        .filter(|name| !name.is_empty())
        .ok_or_else(|| Refusal::rule(code::REFUSED, "empty command"))?;
    Ok(Program::new(candidates(name, &request.env)?, argv, env))
}

fn strings(list: &[Bytes]) -> Result<Vec<CString>, Refusal> {
    list.iter()
        .map(|Bytes(bytes)| string(bytes.clone()))
        .collect()
}

fn string(bytes: Vec<u8>) -> Result<CString, Refusal> {
    CString::new(bytes).map_err(|_| Refusal::rule(code::REFUSED, "NUL in an argument"))
}

/// The paths to try: `name` itself when it has a slash, else one per directory of the command's own PATH.
fn candidates(name: &[u8], env: &[Bytes]) -> Result<Vec<CString>, Refusal> {
    if name.contains(&b'/') {
        return Ok(vec![string(name.to_vec())?]);
    }
    let path = env
        .iter()
        .find_map(|Bytes(entry)| entry.strip_prefix(b"PATH="));
    path.unwrap_or(DEFAULT_PATH)
        .split(|byte| *byte == b':')
        .take(MAX_CANDIDATES)
        .map(|directory| match directory {
            // POSIX: an empty entry is the working directory.
            [] => string([b"./", name].concat()),
            _ => string([directory, b"/", name].concat()),
        })
        .collect()
}
