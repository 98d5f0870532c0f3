//! The agent inside the sandbox: an event loop that starts commands, moves their output and works on files.
//!
//! It builds no wall (`launch` did) and decides nothing that the policy decides; it can be asked only over its channel.

mod change;
mod channel;
mod child;
mod command;
mod commands;
mod confinement;
mod descent;
mod disk;
mod event;
mod event_loop;
mod files;
mod input;
mod limits;
mod listing;
mod output;
mod processes;
mod refusal;
mod removal;
mod resolve;
mod spare;
mod spawn;
mod stats;
#[cfg(test)]
mod tests;
mod throttle;
mod transfer;
mod tree;
mod watch;

use std::os::fd::OwnedFd;

use crate::sys::{ident, process};
use crate::wire::message::Rlimit;
use crate::wire::plan::{FileRoot, Identity, Watch};
use channel::ChannelError;
use event_loop::EventLoop;

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
    /// `tasks` of v1 hierarchies, opened by the launcher: a command writes "0" to join.
    pub join_cgroups: Vec<OwnedFd>,
    /// A Landlock ruleset that each command restricts itself with.
    pub landlock: Option<OwnedFd>,
    /// `struct sock_filter[]` that each command adds to its own filters.
    pub seccomp_child: Vec<u8>,
    /// Limits for each command.
    pub rlimits: Vec<Rlimit>,
    /// Where file operations may go.
    pub roots: Vec<FileRoot>,
    /// What the cell measures itself.
    pub watch: Watch,
}

/// Serve until the channel or the owner ends, then kill everything and exit.
pub fn run(cell: Cell) -> ! {
    // Whatever the reason: without its channel the sandbox has no owner. The host sees the channel end; stderr is for
    // whoever debugs the cell.
    let code = match EventLoop::new(cell).and_then(EventLoop::run) {
        Ok(()) | Err(ChannelError::Closed) => 0,
        Err(error) => {
            eprintln!("stockade-cell: {error}");
            1
        }
    };
    end(code)
}

/// As PID 1 our exit ends the namespace as well; the kill comes first because exit waits for the dead.
fn end(code: libc::c_int) -> ! {
    if process::own_pid() == 1 {
        // ESRCH: there is nobody.
        let _ = process::kill(-1, libc::SIGKILL);
    }
    ident::exit_now(code)
}
