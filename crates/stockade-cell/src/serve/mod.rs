//! The agent inside the sandbox: an event loop that starts commands, moves their output and works on files.

use std::os::fd::OwnedFd;

use crate::wire::message::Rlimit;
use crate::wire::plan::{FileRoot, Identity, Watch};

/// What the launcher leaves to the cell. All descriptors are close-on-exec.
#[derive(Debug)]
pub struct Cell {
    /// The control channel to the host (a stream socket); its end is the sandbox's end.
    pub channel: OwnedFd,
    /// A pidfd of the owner; when it becomes readable, the owner is gone and so are we.
    pub owner: OwnedFd,
    /// Inside ids of cell and payload, and the tag groups.
    pub identity: Identity,
    /// cgroup2 directory that commands are cloned into.
    pub work_cgroup: Option<OwnedFd>,
    /// `cgroup.procs` of v1 hierarchies, opened by the launcher: a command writes "0" to join.
    pub join_cgroups: Vec<OwnedFd>,
    /// A ruleset for landlock_restrict_self(2).
    pub landlock: Option<OwnedFd>,
    /// struct sock_filter[] that each command adds to its own filters.
    pub seccomp_child: Vec<u8>,
    /// Limits for each command.
    pub rlimits: Vec<Rlimit>,
    /// Where file operations may go.
    pub roots: Vec<FileRoot>,
    /// What the cell measures itself.
    pub watch: Watch,
}

/// Serve until the channel or the owner ends, then kill everything and exit.
pub fn run(_cell: Cell) -> ! {
    std::process::exit(0)
}
