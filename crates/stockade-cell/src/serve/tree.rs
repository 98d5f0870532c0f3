//! "The command's tree": which processes belong to a command, and how all of them are ended.
//!
//! With tags it is the supplementary group, which the payload can neither drop nor take. With a single id there is no
//! mark: it is the descendants of the main process, and every orphan that descends from no live command. That ends
//! another command's daemons too, rather than leave one alive.

use std::collections::BTreeSet;

use super::processes::{Detail, Process, ProcessTable};
use crate::sys::process::{kill, own_pid};
use crate::sys::{SysResult, process};

/// Passes of single kills before everything is stopped first: a fork storm outruns a scan, two passes end all else.
const PLAIN_PASSES: u32 = 2;

/// How a command is told from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Its main process.
    pub pid: libc::pid_t,
    /// Its supplementary group, where there are tags.
    pub tag: Option<u32>,
}

/// Scan with the detail that membership needs.
pub fn scan(table: &ProcessTable, has_tags: bool) -> SysResult<Vec<Process>> {
    table.scan(if has_tags {
        Detail::Groups
    } else {
        Detail::Times
    })
}

/// The living processes of `mark`'s command. `others` are the main processes of all other live commands.
#[must_use]
pub fn members<'a>(
    processes: &'a [Process],
    mark: Mark,
    others: &[libc::pid_t],
) -> Vec<&'a Process> {
    let belongs = |process: &Process| match mark.tag {
        Some(tag) => process.groups.contains(&tag),
        None if own_pid() == 1 => !descends_from(processes, process, others),
        // Without a PID namespace an orphan may be anybody's.
        None => descends_from(processes, process, &[mark.pid]),
    };
    let living = processes.iter().filter(|process| process.alive);
    living.filter(|process| belongs(process)).collect()
}

fn descends_from(processes: &[Process], process: &Process, mains: &[libc::pid_t]) -> bool {
    let mut pid = process.pid;
    // A scan is not a snapshot, so the parents in it might form a circle.
    for _ in 0..=processes.len() {
        if mains.contains(&pid) {
            return true;
        }
        match processes.iter().find(|process| process.pid == pid) {
            Some(process) => pid = process.parent,
            None => return false,
        }
    }
    false
}

/// Send `signal` to each; who has ended meanwhile needs none.
pub fn signal(members: &[&Process], signal: libc::c_int) {
    for member in members {
        let _ = kill(member.pid, signal);
    }
}

/// Signal everything in the PID namespace but the cell. Without a PID namespace of our own that would be the host.
pub fn signal_all(signal: libc::c_int) {
    if own_pid() == 1 {
        // ESRCH: there is nobody.
        let _ = kill(-1, signal);
    }
}

/// The ending of one command's tree, pass by pass.
#[derive(Debug, Default)]
pub struct Sweep {
    passes: u32,
    killed: BTreeSet<libc::pid_t>,
}

impl Sweep {
    /// Processes that had to be killed, without the main one.
    #[must_use]
    pub fn leftovers(&self) -> u32 {
        u32::try_from(self.killed.len()).unwrap_or(u32::MAX)
    }

    /// Milliseconds until the next pass is worth while: the kernel needs time to end what was killed.
    #[must_use]
    pub fn pause_ms(&self) -> u64 {
        1 << self.passes.min(6)
    }

    /// Kill what lives of the tree. True when nothing did.
    pub fn pass(
        &mut self,
        table: &ProcessTable,
        mark: Mark,
        others: &[libc::pid_t],
    ) -> SysResult<bool> {
        let processes = scan(table, mark.tag.is_some())?;
        let found = members(&processes, mark, others);
        let strays = found.iter().map(|process| process.pid);
        self.killed.extend(strays.filter(|pid| *pid != mark.pid));
        if found.is_empty() {
            return Ok(true);
        }
        self.passes += 1;
        if others.is_empty() && own_pid() == 1 {
            // All that lives is this command's. One call reaches forks under way too, however many there are.
            signal_all(libc::SIGKILL);
        } else {
            signal(&found, libc::SIGKILL);
            if self.passes > PLAIN_PASSES {
                self.stop_and_kill(&processes, table, mark, others)?;
            }
        }
        Ok(false)
    }

    /// Against a fork storm beside other commands: nobody forks while stopped. SIGCONT then wakes the others, except
    /// those that were stopped before.
    fn stop_and_kill(
        &mut self,
        before: &[Process],
        table: &ProcessTable,
        mark: Mark,
        others: &[libc::pid_t],
    ) -> SysResult<()> {
        signal_all(libc::SIGSTOP);
        let processes = scan(table, mark.tag.is_some());
        let slept = |pid| {
            before
                .iter()
                .any(|process| process.pid == pid && process.stopped)
        };
        let processes = match processes {
            Ok(processes) => processes,
            Err(error) => {
                signal_all(libc::SIGCONT);
                return Err(error);
            }
        };
        let found = members(&processes, mark, others);
        signal(&found, libc::SIGKILL);
        let strays = found.iter().map(|process| process.pid);
        self.killed.extend(strays.filter(|pid| *pid != mark.pid));
        for process in &processes {
            if !found.contains(&process) && !slept(process.pid) {
                let _ = process::kill(process.pid, libc::SIGCONT);
            }
        }
        Ok(())
    }
}
