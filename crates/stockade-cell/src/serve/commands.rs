//! All live commands: starting them, reaping, time limits, and the end of their trees.

use std::collections::BTreeMap;
use std::time::Instant;

use super::channel::Channel;
use super::command::{Command, Due};
use super::confinement::Confinement;
use super::event::Source;
use super::input::CreditExceeded;
use super::processes::ProcessTable;
use super::refusal::Refusal;
use super::resolve::Resolver;
use super::spare::Spare;
use super::spawn::spawn;
use super::tree::{self, Mark};
use crate::sys::Errno;
use crate::sys::io::Epoll;
use crate::sys::process::{self, Reaped};
use crate::wire::message::{Start, code, reason};

/// Live commands: each has three descriptors, which leaves room in the cell's limit of 1,024.
pub const MAX_COMMANDS: usize = 256;
/// Children reaped in one turn; a fork bomb's dead must not keep the loop from its channel.
const REAPS_PER_TURN: usize = 256;
/// Signals that exist.
const SIGNALS: std::ops::RangeInclusive<libc::c_int> = 1..=64;

/// What the last look at our children showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Children {
    /// Not known: ask /proc.
    Unknown,
    /// wait4(2) said ECHILD.
    None,
}

/// Live commands by id.
#[derive(Debug)]
pub struct Commands {
    live: BTreeMap<u32, Command>,
    children: Children,
    reap_pending: bool,
    next_tag: u32,
    spare: Option<Spare>,
    wants_spare: bool,
    any_started: bool,
}

impl Commands {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            live: BTreeMap::new(),
            children: Children::Unknown,
            reap_pending: false,
            next_tag: 0,
            spare: None,
            wants_spare: false,
            any_started: false,
        }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.live.len()
    }

    /// The command with this id.
    pub fn get(&mut self, id: u32) -> Option<&mut Command> {
        self.live.get_mut(&id)
    }

    /// Their ids.
    #[must_use]
    pub fn ids(&self) -> Vec<u32> {
        self.live.keys().copied().collect()
    }

    /// The running ones: id, mark, and the main processes of the others.
    #[must_use]
    pub fn marks(&self) -> Vec<(u32, Mark, Vec<libc::pid_t>)> {
        let running = self.live.values().filter(|command| command.is_running());
        running
            .map(|command| (command.id, command.mark, self.mains_except(command.id)))
            .collect()
    }

    /// Start one. STARTED or ERROR follows when the new process got through its steps.
    pub fn start(
        &mut self,
        id: u32,
        request: &Start,
        confinement: &Confinement,
        resolver: &Resolver,
        epoll: &Epoll,
        table: &ProcessTable,
    ) -> Result<(), Refusal> {
        if self.live.len() >= MAX_COMMANDS {
            return Err(Refusal::rule(code::LIMIT, "commands"));
        }
        let tag = self.free_tag(confinement)?;
        // The first command may be the only one; a clone for nothing costs its end, too.
        self.wants_spare = self.any_started;
        self.any_started = true;
        let spare = self.take_spare(table);
        let spawned = spawn(request, tag, confinement, resolver, spare)?;
        let pid = spawned.pid;
        self.children = Children::Unknown;
        match Command::new(id, tag, request, spawned, epoll) {
            Ok(command) => {
                self.live.insert(id, command);
                Ok(())
            }
            Err(error) => {
                // It is reaped like any orphan.
                let _ = process::kill(pid, libc::SIGKILL);
                Err(Refusal::call(code::START, error, "epoll"))
            }
        }
    }

    /// Make a process ahead of the next command, when there is nothing else to do.
    pub fn refill(&mut self, confinement: &Confinement, resolver: &Resolver, table: &ProcessTable) {
        // With a single id it would be the payload's to slow down or stop.
        if !confinement.has_tags() {
            return;
        }
        // Not while a short command runs: on a busy host the clone would take its processor.
        if self.spare.is_some() || !self.wants_spare || self.live.values().any(Command::is_new) {
            return;
        }
        match Spare::fork(confinement, resolver) {
            Ok(spare) => {
                table.hide(spare.pid);
                self.spare = Some(spare);
            }
            // A limit, most likely: the next command says which.
            Err(_) => self.wants_spare = false,
        }
    }

    /// Let the waiting process go on after everybody was stopped.
    pub fn wake_spare(&self) {
        if let Some(spare) = &self.spare {
            // ESRCH can't be: it is our child and was not reaped.
            let _ = process::kill(spare.pid, libc::SIGCONT);
        }
    }

    /// From here on its pid is a command's, or nobody's.
    fn take_spare(&mut self, table: &ProcessTable) -> Option<Spare> {
        table.hide(0);
        self.spare.take()
    }

    /// The next tag that no live command has; a command keeps its tag until its tree is gone.
    fn free_tag(&mut self, confinement: &Confinement) -> Result<Option<u32>, Refusal> {
        let identity = &confinement.identity;
        for _ in 0..identity.tag_count {
            let tag = identity.tag_gid.saturating_add(self.next_tag);
            self.next_tag = (self.next_tag + 1) % identity.tag_count;
            if !self
                .live
                .values()
                .any(|command| command.mark.tag == Some(tag))
            {
                return Ok(Some(tag));
            }
        }
        if confinement.has_tags() {
            return Err(Refusal::rule(code::LIMIT, "tags"));
        }
        Ok(None)
    }

    /// An event came for a descriptor of a command. The id may be of one that has ended.
    pub fn on_event(&mut self, source: Source, id: u32, channel: &mut Channel, epoll: &Epoll) {
        let Some(command) = self.live.get_mut(&id) else {
            return;
        };
        match source {
            Source::Status => command.check_status(channel),
            Source::Stdin => command.pump_input(channel, epoll),
            _ => {
                command.check_status(channel);
                command.mark_ready(source);
            }
        }
    }

    /// Bytes for a command's standard input.
    pub fn push_input(
        &mut self,
        id: u32,
        data: &[u8],
        channel: &mut Channel,
        epoll: &Epoll,
    ) -> Result<(), CreditExceeded> {
        if let Some(command) = self.live.get_mut(&id) {
            command.push_input(data)?;
            command.pump_input(channel, epoll);
        }
        Ok(())
    }

    /// Close a command's standard input after what is waiting.
    pub fn end_input(&mut self, id: u32, channel: &mut Channel, epoll: &Epoll) {
        if let Some(command) = self.live.get_mut(&id) {
            command.end_input();
            command.pump_input(channel, epoll);
        }
    }

    /// Send a signal that the host asks for.
    pub fn signal(
        &mut self,
        id: u32,
        number: libc::c_int,
        whole_tree: bool,
        table: &ProcessTable,
        now: Instant,
    ) {
        let others = self.mains_except(id);
        let running = self
            .live
            .get_mut(&id)
            .filter(|command| command.is_running());
        let Some(command) = running.filter(|_| SIGNALS.contains(&number)) else {
            return;
        };
        command.note_host_signal(number);
        match (whole_tree, number) {
            (true, libc::SIGKILL) => command.kill(now),
            (true, _) => signal_tree(command, number, table, &others),
            // ESRCH can't be: it is our child and was not reaped.
            (false, _) => drop(process::kill(command.mark.pid, number)),
        }
    }

    /// End a command's tree for `reason`.
    pub fn kill(&mut self, id: u32, reason: u8, now: Instant) {
        if let Some(command) = self.live.get_mut(&id) {
            if command.is_running() {
                command.blame(reason);
            }
            if reason == reason::CANCELLED {
                command.discard_output();
            }
            command.kill(now);
        }
    }

    /// A child has ended.
    pub fn note_child(&mut self) {
        self.reap_pending = true;
    }

    /// Reap whoever has ended, ours or an orphan.
    pub fn reap(&mut self, channel: &mut Channel, table: &ProcessTable, now: Instant) {
        if !self.reap_pending {
            return;
        }
        self.children = Children::Unknown;
        for _ in 0..REAPS_PER_TURN {
            match process::reap_any() {
                Ok(Some(reaped)) => {
                    if self
                        .spare
                        .as_ref()
                        .is_some_and(|spare| spare.pid == reaped.pid)
                    {
                        // Somebody killed it; the next command does without, and makes another.
                        drop(self.take_spare(table));
                        self.wants_spare = false;
                    }
                    self.on_reaped(reaped, channel, now);
                }
                Err(Errno(libc::ECHILD)) => {
                    self.children = Children::None;
                    self.reap_pending = false;
                    break;
                }
                Ok(None) | Err(_) => {
                    self.reap_pending = false;
                    break;
                }
            }
        }
        for command in self.live.values_mut() {
            // Some of a tree that is being killed may be gone: look at once.
            if command.next_pass.is_some() {
                command.next_pass = Some(now);
            }
        }
    }

    fn on_reaped(&mut self, reaped: Reaped, channel: &mut Channel, now: Instant) {
        let is_main =
            |command: &&mut Command| command.mark.pid == reaped.pid && command.is_running();
        if let Some(command) = self.live.values_mut().find(is_main) {
            command.end(reaped, channel, now);
        }
    }

    /// Announce commands that have lived a little.
    pub fn look(&mut self, channel: &mut Channel, epoll: &Epoll, now: Instant) {
        for command in self.live.values_mut() {
            command.look(channel, epoll, now);
        }
    }

    /// Time limits.
    pub fn check_alarms(&mut self, table: &ProcessTable, now: Instant) {
        let ids: Vec<u32> = self.live.keys().copied().collect();
        for id in ids {
            let Some(command) = self.live.get_mut(&id) else {
                continue;
            };
            match command.check_alarm(now) {
                Due::Nothing => {}
                Due::Kill => command.kill(now),
                Due::Terminate => {
                    command.note_signal(libc::SIGTERM);
                    let others = self.mains_except(id);
                    if let Some(command) = self.live.get_mut(&id) {
                        signal_tree(command, libc::SIGTERM, table, &others);
                    }
                }
            }
        }
    }

    /// End what commands left behind.
    pub fn sweep(&mut self, table: &ProcessTable, now: Instant) {
        let due = self.live.values().filter(|command| command.needs_pass(now));
        let due: Vec<u32> = due.map(|command| command.id).collect();
        if due.is_empty() {
            return;
        }
        let alone = !self.has_strays(table);
        let is_running = |id: &u32| self.live.get(id).is_some_and(Command::is_running);
        if !alone || due.iter().any(is_running) {
            // What ends a tree may reach everybody; a spare that was stopped or killed is of no use.
            drop(self.take_spare(table));
        }
        for id in due {
            let others = self.mains_except(id);
            let Some(command) = self.live.get_mut(&id) else {
                continue;
            };
            if alone && !command.is_running() {
                command.set_swept();
            } else {
                command.pass(table, &others, now);
            }
        }
    }

    /// True when somebody but the main processes of live commands is our child. A dead command's process descends from
    /// us through such a stray only; so without one, there is nothing to look for.
    fn has_strays(&self, table: &ProcessTable) -> bool {
        if self.children == Children::None {
            return false;
        }
        // A kernel without the list costs a scan, nothing else.
        let Ok(children) = table.children() else {
            return true;
        };
        let is_main = |pid: &libc::pid_t| {
            self.live
                .values()
                .any(|command| command.mark.pid == *pid && command.is_running())
        };
        !children.iter().all(is_main)
    }

    /// The main processes of the commands that live, without one of them.
    fn mains_except(&self, id: u32) -> Vec<libc::pid_t> {
        let others = self.live.values().filter(|command| command.id != id);
        others
            .filter(|command| command.is_running())
            .map(|command| command.mark.pid)
            .collect()
    }

    /// Read output and send the last frames. True when there is more to read at once.
    pub fn pump(&mut self, channel: &mut Channel, scratch: &mut [u8], now: Instant) -> bool {
        let mut more = false;
        self.live.retain(|id, command| {
            more |= command.pump_output(channel, scratch);
            match command.finish(now) {
                Some(last) => {
                    channel.send(*id, &last);
                    false
                }
                None => true,
            }
        });
        more || self.reap_pending
    }

    /// When something is due without an event.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.live.values().filter_map(Command::deadline).min()
    }
}

fn signal_tree(
    command: &Command,
    number: libc::c_int,
    table: &ProcessTable,
    others: &[libc::pid_t],
) {
    match tree::scan(table, command.mark.tag.is_some()) {
        Ok(processes) => tree::signal(&tree::members(&processes, command.mark, others), number),
        // No descriptor left to look with: the main process at least.
        Err(_) => drop(process::kill(command.mark.pid, number)),
    }
}
