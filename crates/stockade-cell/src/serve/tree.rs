//! "The command's tree": which processes belong to a command, and how all of them are ended.
//!
//! With tags it is the supplementary group, which the payload can neither drop nor take. With a single id there is no
//! mark: it is the descendants of the main process, and every orphan that descends from no live command. That ends
//! another command's daemons too, rather than leave one alive.

use std::collections::{BTreeMap, BTreeSet};

use super::processes::{Detail, Process, ProcessTable};
use crate::sys::SysResult;
use crate::sys::process::{kill, own_pid};

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
    let living = processes.iter().filter(|process| process.alive);
    if let Some(tag) = mark.tag {
        return living
            .filter(|process| process.groups.contains(&tag))
            .collect();
    }
    if own_pid() == 1 {
        let spared = descendants(processes, others);
        return living
            .filter(|process| !spared.contains(&process.pid))
            .collect();
    }
    // Without a PID namespace an orphan may be anybody's.
    let own = descendants(processes, &[mark.pid]);
    living
        .filter(|process| own.contains(&process.pid))
        .collect()
}

/// `mains` and all below them. A scan is not a snapshot: the parents in it may even form a circle.
fn descendants(processes: &[Process], mains: &[libc::pid_t]) -> BTreeSet<libc::pid_t> {
    let mut children: BTreeMap<libc::pid_t, Vec<libc::pid_t>> = BTreeMap::new();
    for process in processes {
        children
            .entry(process.parent)
            .or_default()
            .push(process.pid);
    }
    let mut found = BTreeSet::new();
    let mut left = mains.to_vec();
    while let Some(pid) = left.pop() {
        if found.insert(pid) {
            left.extend(children.get(&pid).into_iter().flatten());
        }
    }
    found
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
        let result = scan(table, mark.tag.is_some());
        let processes = result.as_ref().map_or(before, Vec::as_slice);
        let found = members(processes, mark, others);
        signal(&found, libc::SIGKILL);
        let found: BTreeSet<_> = found.iter().map(|process| process.pid).collect();
        let slept = before.iter().filter(|process| process.stopped);
        let slept: BTreeSet<_> = slept.map(|process| process.pid).collect();
        for process in processes {
            if !found.contains(&process.pid) && !slept.contains(&process.pid) {
                // ESRCH: it has ended.
                let _ = kill(process.pid, libc::SIGCONT);
            }
        }
        self.killed
            .extend(found.iter().filter(|pid| **pid != mark.pid));
        result.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: libc::pid_t, parent: libc::pid_t) -> Process {
        Process {
            pid,
            parent,
            alive: true,
            ..Process::default()
        }
    }

    #[test]
    fn test_descendants_of_a_scan_with_a_circle_are_found_once() {
        let processes = [process(2, 1), process(3, 2), process(4, 5), process(5, 4)];
        assert_eq!(descendants(&processes, &[2]), BTreeSet::from([2, 3]));
        assert_eq!(descendants(&processes, &[4]), BTreeSet::from([4, 5]));
    }

    #[test]
    fn test_members_are_the_living_with_the_tag() {
        let tagged = |pid, groups: &[u32], alive| Process {
            groups: groups.to_vec(),
            alive,
            ..process(pid, 1)
        };
        let processes = [
            tagged(2, &[7], true),
            tagged(3, &[8], true),
            tagged(4, &[7], false),
        ];
        let tag = Some(7);
        let found = members(&processes, Mark { pid: 2, tag }, &[]);
        assert_eq!(found, [&processes[0]]);
    }
}
