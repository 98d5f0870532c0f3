//! What a new process does between clone and exec. The cell has one thread, so this may allocate; a failed step is
//! written to the status pipe, which exec closes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::confinement::{CommandIds, Confinement};
use super::refusal::Refusal;
use super::resolve::Resolver;
use crate::sys::process::{self, Program};
use crate::sys::{Errno, SysResult, ident, io};
use crate::wire::message::{Rlimit, code};

/// Exit code of a child whose step failed; nobody sees it.
const FAILED: libc::c_int = 127;

/// The steps, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Join the v1 cgroups.
    Cgroup,
    /// A session of its own.
    Session,
    /// The terminal becomes the controlling one.
    Terminal,
    /// Resource limits.
    Limits,
    /// 0, 1, 2, and nothing else after exec.
    Descriptors,
    /// Groups, gid, uid.
    Ids,
    /// No capability.
    Capabilities,
    /// Landlock.
    Landlock,
    /// The working directory cannot be entered.
    Directory,
    /// The working directory is in a forbidden place.
    DirectoryForbidden,
    /// The child's own filter.
    Filter,
    /// execve(2).
    Execute,
}

const STEPS: [(Step, &str, u16); 12] = [
    (Step::Cgroup, "cgroup", code::START),
    (Step::Session, "session", code::START),
    (Step::Terminal, "terminal", code::START),
    (Step::Limits, "limits", code::START),
    (Step::Descriptors, "descriptors", code::START),
    (Step::Ids, "ids", code::START),
    (Step::Capabilities, "capabilities", code::START),
    (Step::Landlock, "landlock", code::START),
    (Step::Directory, "directory", code::CWD),
    (Step::DirectoryForbidden, "directory not allowed", code::CWD),
    (Step::Filter, "filter", code::START),
    (Step::Execute, "execute", code::EXEC),
];

/// A step that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepError {
    step: Step,
    errno: Errno,
}

/// Length of an encoded `StepError`: the step's number and the errno.
pub const RECORD_BYTES: usize = 5;

impl StepError {
    fn encode(self) -> [u8; RECORD_BYTES] {
        let number = STEPS.iter().position(|(step, ..)| *step == self.step);
        let number = number.and_then(|n| u8::try_from(n).ok()).unwrap_or(u8::MAX);
        let [a, b, c, d] = self.errno.0.to_le_bytes();
        [number, a, b, c, d]
    }

    /// What the host is told. The bytes are from our own code, which nothing of the payload has run in yet.
    #[must_use]
    pub fn refusal(record: [u8; RECORD_BYTES]) -> Refusal {
        let [number, a, b, c, d] = record;
        let errno = Errno(i32::from_le_bytes([a, b, c, d]));
        match STEPS.get(usize::from(number)) {
            // The program's own EAGAIN or ENOMEM is a limit too: RLIMIT_NPROC is checked at exec.
            Some((_, name, code)) => Refusal::call(*code, errno, name),
            None => Refusal::call(code::START, errno, "unknown step"),
        }
    }
}

/// Everything that the new process needs.
#[derive(Debug)]
pub struct Child<'a> {
    /// What it is put into.
    pub confinement: &'a Confinement,
    /// Who it becomes.
    pub ids: Option<CommandIds>,
    /// Limits of this command only.
    pub rlimits: &'a [Rlimit],
    /// Standard input, output and error.
    pub stdio: [BorrowedFd<'a>; 3],
    /// 0 is a terminal to take.
    pub has_terminal: bool,
    /// Where it starts.
    pub cwd: &'a [u8],
    /// How to get there.
    pub resolver: &'a Resolver,
    /// What it executes.
    pub program: &'a Program,
    /// Where it reports.
    pub status: OwnedFd,
    /// `prepare` was done before.
    pub prepared: bool,
}

/// What does not depend on the command: cgroups, session, limits, Landlock, the filter. The kernel compiles the filter
/// at each installation, which is half of what a command's confinement costs.
pub fn prepare(confinement: &Confinement) -> Result<(), (Step, Errno)> {
    let at = |step| move |errno| (step, errno);
    join_cgroups(confinement).map_err(at(Step::Cgroup))?;
    process::new_session().map_err(at(Step::Session))?;
    limit(&confinement.rlimits).map_err(at(Step::Limits))?;
    if let Some(ruleset) = &confinement.landlock {
        ident::landlock_restrict(ruleset.as_fd()).map_err(at(Step::Landlock))?;
    }
    // The filter refuses nothing that the steps after it call.
    if !confinement.seccomp_child.is_empty() {
        ident::install_child_filter(&confinement.seccomp_child).map_err(at(Step::Filter))?;
    }
    Ok(())
}

fn join_cgroups(confinement: &Confinement) -> SysResult<()> {
    for tasks in &confinement.join_cgroups {
        io::write_all(tasks.as_fd(), b"0")?;
    }
    Ok(())
}

fn limit(limits: &[Rlimit]) -> SysResult<()> {
    for limit in limits {
        ident::set_rlimit(limit.resource, limit.soft, limit.hard)?;
    }
    Ok(())
}

impl Child<'_> {
    /// Become the command, or report and end.
    pub fn run(self) -> ! {
        let Err(error) = self.apply();
        // The reader is gone only if the cell died, and then this process dies with it.
        let _ = io::write_all(self.status.as_fd(), &error.encode());
        ident::exit_now(FAILED)
    }

    fn apply(&self) -> Result<std::convert::Infallible, StepError> {
        let at = |step| move |errno| StepError { step, errno };
        if !self.prepared {
            prepare(self.confinement).map_err(|(step, errno)| StepError { step, errno })?;
        }
        if self.has_terminal {
            process::take_terminal(self.stdio[0]).map_err(at(Step::Terminal))?;
        }
        limit(self.rlimits).map_err(at(Step::Limits))?;
        self.connect().map_err(at(Step::Descriptors))?;
        self.switch_ids().map_err(at(Step::Ids))?;
        // uid 0 inside keeps its set across setresuid (securebits), so it is emptied by hand.
        ident::set_capabilities(0).map_err(at(Step::Capabilities))?;
        self.enter_directory()?;
        process::unblock_signals().map_err(at(Step::Session))?;
        Err(at(Step::Execute)(self.program.execute()))
    }

    fn connect(&self) -> SysResult<()> {
        for (target, fd) in (0..).zip(self.stdio) {
            process::duplicate_to(fd, target)?;
        }
        process::close_on_exec_from(3)
    }

    /// Groups and gid first: without the old uid's capability nothing more can be changed.
    fn switch_ids(&self) -> SysResult<()> {
        let Some(ids) = self.ids else {
            return Ok(());
        };
        ident::set_groups(&[ids.tag])?;
        ident::set_gid(ids.gid)?;
        ident::set_uid(ids.uid)?;
        // Until exec this is a copy of the cell under the payload's uid. The kernel keeps others of that uid out of it,
        // except where fs.suid_dumpable=1.
        ident::prctl(libc::PR_SET_DUMPABLE, 0).map(drop)
    }

    /// After the switch of ids, so that the kernel checks the way there with the command's rights.
    fn enter_directory(&self) -> Result<(), StepError> {
        let failed = |refusal: Refusal| StepError {
            step: match refusal.errno {
                Errno(0) => Step::DirectoryForbidden,
                _ => Step::Directory,
            },
            errno: refusal.errno,
        };
        let directory = self.resolver.directory(self.cwd).map_err(failed)?;
        let step = Step::Directory;
        process::change_directory(directory.as_fd()).map_err(|errno| StepError { step, errno })
    }
}
