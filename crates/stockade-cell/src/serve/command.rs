//! One live command: its process, its streams, its time limit, and how it ended.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::child::{RECORD_BYTES, StepError};
use super::event::{Source, token};
use super::input::{CreditExceeded, Input};
use super::output::{OutputStream, Pumped};
use super::processes::ProcessTable;
use super::refusal::Refusal;
use super::spawn::Spawned;
use super::tree::{Mark, Sweep};
use crate::sys::io::{self, Epoll, Interest};
use crate::sys::process::{self, Reaped};
use crate::sys::{Errno, SysResult};
use crate::wire::message::{Exited, FromCell, Start, Started, reason, start, stream};

/// When a command without input is first looked at, if it has not ended by then: most have, and each event in the
/// middle of a short life would wake cell and host beside it. It delays the first output by no more than this.
const FIRST_LOOK: Duration = Duration::from_millis(2);
/// How long the output of a dead tree may stay open: only a process outside the tree can hold it.
const DRAIN: Duration = Duration::from_millis(200);
/// Reads of one stream in one turn, so that one command's output does not starve the rest.
const READS_PER_TURN: usize = 4;
/// As a shell reports it: the exit code of a command that a signal ended.
const SIGNAL_CODE: i32 = 128;

/// What happens when the alarm goes off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alarm {
    Timeout,
    GraceOver,
}

/// What the alarm asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Nothing yet.
    Nothing,
    /// SIGTERM to the tree.
    Terminate,
    /// SIGKILL to the tree.
    Kill,
}

/// How the main process ended.
#[derive(Debug)]
struct Ending {
    reaped: Reaped,
    duration: Duration,
}

/// A command from START to EXITED.
#[derive(Debug)]
pub struct Command {
    /// The operation's id.
    pub id: u32,
    /// How its processes are told from others.
    pub mark: Mark,
    status: Option<OwnedFd>,
    first_look: Option<Instant>,
    failure: Option<Refusal>,
    input: Option<Input>,
    outputs: [Option<OutputStream>; 2],
    started: Instant,
    alarm: Option<(Instant, Alarm)>,
    grace: Duration,
    reason: u8,
    host_signal: u8,
    last_signal: u8,
    ending: Option<Ending>,
    sweep: Sweep,
    /// When to look at the tree next; `None` while it may live.
    pub next_pass: Option<Instant>,
    swept: bool,
    drained_by: Option<Instant>,
    dropped: [u64; 2],
}

impl Command {
    /// Take over a new process and register its descriptors.
    pub fn new(
        id: u32,
        tag: Option<u32>,
        request: &Start,
        spawned: Spawned,
        epoll: &Epoll,
    ) -> SysResult<Self> {
        let started = Instant::now();
        let is_terminal = request.flags & start::PTY != 0;
        let output =
            |fd, number| OutputStream::new(fd, number, request.credit, request.output_limit);
        let has_input = spawned.input.is_some();
        let command = Self {
            id,
            mark: Mark {
                pid: spawned.pid,
                tag,
            },
            status: Some(spawned.status),
            first_look: (!has_input).then_some(started + FIRST_LOOK),
            failure: None,
            input: spawned.input.map(|fd| Input::new(fd, is_terminal)),
            outputs: [
                Some(output(spawned.output, stream::STDOUT)),
                spawned.error.map(|fd| output(fd, stream::STDERR)),
            ],
            started,
            alarm: after(started, request.timeout_ms).map(|when| (when, Alarm::Timeout)),
            grace: Duration::from_millis(u64::from(request.grace_ms)),
            reason: reason::EXIT,
            host_signal: 0,
            last_signal: 0,
            ending: None,
            sweep: Sweep::default(),
            next_pass: None,
            swept: false,
            drained_by: None,
            dropped: [0; 2],
        };
        if has_input {
            // The host waits for the first credit.
            command.attach(epoll)?;
        }
        Ok(command)
    }

    /// Wait for its events from now on.
    fn attach(&self, epoll: &Epoll) -> SysResult<()> {
        let [output, error] = &self.outputs;
        let descriptors = [
            (Source::Status, self.status.as_ref().map(AsFd::as_fd)),
            (
                Source::Stdout,
                output.as_ref().map(OutputStream::descriptor),
            ),
            (Source::Stderr, error.as_ref().map(OutputStream::descriptor)),
        ];
        for (source, fd) in descriptors {
            let Some(fd) = fd else { continue };
            match epoll.add(fd, token(source, self.id), Interest::ReadEdge) {
                // The second try after one that failed half-way.
                Ok(()) | Err(Errno(libc::EEXIST)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// An event came for one of its descriptors.
    pub fn mark_ready(&mut self, source: Source) {
        let [stdout, stderr] = &mut self.outputs;
        match source {
            Source::Stdout => stdout.as_mut().map(OutputStream::mark_ready),
            Source::Stderr => stderr.as_mut().map(OutputStream::mark_ready),
            _ => None,
        };
    }

    /// Look whether exec has happened or a step has failed. STARTED goes before any output: exec closes the status
    /// pipe before the program runs.
    pub fn check_status(&mut self, channel: &mut Channel) {
        let Some(status) = &self.status else {
            return;
        };
        let mut record = [0; RECORD_BYTES];
        match io::read(status.as_fd(), &mut record) {
            Err(Errno(libc::EAGAIN | libc::EINTR)) => return,
            Ok(RECORD_BYTES) => self.failure = Some(StepError::refusal(record)),
            Ok(_) | Err(_) => self.announce(channel),
        }
        self.status = None;
    }

    /// Announce it and wait for its events, when it has lived long enough for that.
    pub fn look(&mut self, channel: &mut Channel, epoll: &Epoll, now: Instant) {
        if self.first_look.is_none_or(|when| when > now) {
            return;
        }
        self.check_status(channel);
        let attached = self.attach(epoll);
        // The user's limit of epoll watches: until there is room it is looked at again and again.
        self.first_look = attached.is_err().then_some(now + FIRST_LOOK);
        for output in self.outputs.iter_mut().flatten() {
            output.mark_ready();
        }
    }

    fn announce(&mut self, channel: &mut Channel) {
        let pid = u32::try_from(self.mark.pid).unwrap_or(0);
        channel.send(self.id, &FromCell::Started(Started { pid }));
        if let Some(input) = &mut self.input {
            input.open(self.id, channel);
        }
    }

    /// Bytes for standard input; without one, or after its end, they are thrown away.
    pub fn push_input(&mut self, data: &[u8]) -> Result<(), CreditExceeded> {
        self.input.as_mut().map_or(Ok(()), |input| input.push(data))
    }

    /// Close standard input.
    pub fn end_input(&mut self) {
        if let Some(input) = &mut self.input {
            input.end();
        }
    }

    /// Write what the command takes.
    pub fn pump_input(&mut self, channel: &mut Channel, epoll: &Epoll) {
        let done = self
            .input
            .as_mut()
            .map(|input| input.pump(self.id, channel, epoll));
        // An input that can't be waited for is closed: the command sees an end, not a silence.
        if matches!(done, Some(Ok(true) | Err(_))) {
            self.input = None;
        }
    }

    /// More credit for an output stream.
    pub fn grant(&mut self, number: u8, count: u32) {
        let [stdout, stderr] = &mut self.outputs;
        match number {
            stream::STDOUT => stdout.as_mut().map(|output| output.grant(count)),
            stream::STDERR => stderr.as_mut().map(|output| output.grant(count)),
            _ => None,
        };
    }

    /// Set the terminal's size; there may be none.
    pub fn resize(&self, rows: u16, cols: u16) {
        if let Some(terminal) = self.input.as_ref().and_then(Input::terminal) {
            // A terminal that was hung up has no size.
            let _ = process::resize_terminal(terminal, rows, cols);
        }
    }

    /// Read its output. True when there is more to read at once.
    pub fn pump_output(&mut self, channel: &mut Channel, scratch: &mut [u8]) -> bool {
        if self.status.is_some() || !self.has_output(channel) {
            return false;
        }
        let mut progress = false;
        for (output, dropped) in self.outputs.iter_mut().zip(&mut self.dropped) {
            for _ in 0..READS_PER_TURN {
                let Some(open) = output else { break };
                match open.pump(self.id, channel, scratch) {
                    Pumped::Waiting => break,
                    Pumped::More => progress = true,
                    Pumped::Closed => {
                        *dropped = open.dropped();
                        *output = None;
                    }
                }
            }
        }
        if progress {
            self.drained_by = None;
        }
        self.has_output(channel)
    }

    fn has_output(&self, channel: &Channel) -> bool {
        self.outputs
            .iter()
            .flatten()
            .any(|output| output.is_runnable(channel))
    }

    /// The main process was reaped.
    pub fn end(&mut self, reaped: Reaped, channel: &mut Channel, now: Instant) {
        self.check_status(channel);
        // A process that was killed before exec: the status pipe is at its end now at the latest.
        self.status = None;
        self.first_look = None;
        self.ending = Some(Ending {
            reaped,
            duration: now.duration_since(self.started),
        });
        self.input = None;
        self.alarm = None;
        self.next_pass = Some(now);
        for output in self.outputs.iter_mut().flatten() {
            output.mark_ready();
        }
    }

    /// True while it may be one of the many that end at once.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.started.elapsed() < FIRST_LOOK
    }

    /// True until the main process was reaped.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.ending.is_none()
    }

    /// What the time limit asks for now.
    pub fn check_alarm(&mut self, now: Instant) -> Due {
        match self.alarm {
            Some((when, alarm)) if when <= now => {
                self.alarm = None;
                self.ring(alarm, now)
            }
            _ => Due::Nothing,
        }
    }

    fn ring(&mut self, alarm: Alarm, now: Instant) -> Due {
        if alarm == Alarm::Timeout {
            self.blame(reason::TIMEOUT);
            if !self.grace.is_zero() {
                self.alarm = Some((now + self.grace, Alarm::GraceOver));
                return Due::Terminate;
            }
        }
        Due::Kill
    }

    /// Why it will have ended; the first reason stays.
    pub fn blame(&mut self, reason: u8) {
        if self.reason == reason::EXIT {
            self.reason = reason;
        }
    }

    /// A signal was sent to it.
    pub fn note_signal(&mut self, number: libc::c_int) {
        self.last_signal = u8::try_from(number).unwrap_or(0);
    }

    /// A signal was sent to it because the host asked for that.
    pub fn note_host_signal(&mut self, number: libc::c_int) {
        self.note_signal(number);
        self.host_signal = self.last_signal;
    }

    /// A command may handle the host's signal and end by itself: that is an ordinary end.
    fn final_reason(&self, signal: u8) -> u8 {
        if self.reason == reason::EXIT && signal != 0 && signal == self.host_signal {
            reason::SIGNALLED
        } else {
            self.reason
        }
    }

    /// SIGKILL to the main process, and passes over the tree until nothing of it is left.
    pub fn kill(&mut self, now: Instant) {
        if self.is_running() {
            self.note_signal(libc::SIGKILL);
            // ESRCH can't be: it is our child and was not reaped.
            let _ = process::kill(self.mark.pid, libc::SIGKILL);
        }
        self.alarm = None;
        self.next_pass = Some(now);
    }

    /// The host gave it up: its output is not wanted either.
    pub fn discard_output(&mut self) {
        for output in self.outputs.iter_mut().flatten() {
            output.discard();
        }
    }

    /// True when the tree must be looked at now.
    #[must_use]
    pub fn needs_pass(&self, now: Instant) -> bool {
        !self.swept && self.next_pass.is_some_and(|when| when <= now)
    }

    /// Nothing of its tree lives, as the list of our own children tells.
    pub fn set_swept(&mut self) {
        if !self.is_running() {
            self.swept = true;
            self.next_pass = None;
        }
    }

    /// Look at the tree and kill what lives of it.
    pub fn pass(&mut self, table: &ProcessTable, others: &[libc::pid_t], now: Instant) {
        let gone = self.sweep.pass(table, self.mark, others);
        self.next_pass = Some(now + Duration::from_millis(self.sweep.pause_ms()));
        // A scan that failed (no descriptor left) is tried again.
        if gone == Ok(true) {
            self.set_swept();
        }
    }

    /// The last frame, when all is over.
    pub fn finish(&mut self, now: Instant) -> Option<FromCell> {
        if !self.swept {
            return None;
        }
        if let Some(refusal) = &self.failure {
            return Some(refusal.message());
        }
        if !self.is_drained(now) {
            return None;
        }
        self.ending.as_ref().map(|ending| self.exited(ending))
    }

    fn is_drained(&mut self, now: Instant) -> bool {
        let open = self.outputs.iter().flatten();
        if open.clone().all(OutputStream::is_at_end) {
            return true;
        }
        // With data but without credit the host decides how long it takes.
        if !open.clone().all(OutputStream::is_empty) {
            self.drained_by = None;
            return false;
        }
        now >= *self.drained_by.get_or_insert(now + DRAIN)
    }

    fn exited(&self, ending: &Ending) -> FromCell {
        let Reaped {
            code,
            signal,
            usage,
            ..
        } = ending.reaped;
        let [stdout_dropped, stderr_dropped] = self.all_dropped();
        FromCell::Exited(Exited {
            code: if signal == 0 {
                code
            } else {
                SIGNAL_CODE + i32::from(signal)
            },
            signal,
            reason: self.final_reason(signal),
            last_signal: self.last_signal,
            duration_us: u64::try_from(ending.duration.as_micros()).unwrap_or(u64::MAX),
            user_us: usage.user_us,
            system_us: usage.system_us,
            max_rss_kib: usage.max_rss_kib,
            stdout_dropped,
            stderr_dropped,
            leftovers: self.sweep.leftovers(),
        })
    }

    fn all_dropped(&self) -> [u64; 2] {
        let mut all = self.dropped;
        for (dropped, output) in all.iter_mut().zip(&self.outputs) {
            *dropped += output.as_ref().map_or(0, OutputStream::dropped);
        }
        all
    }

    /// When it wants to be looked at without an event.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let alarm = self.alarm.map(|(when, _)| when);
        let pass = self.next_pass.filter(|_| !self.swept);
        [alarm, pass, self.drained_by, self.first_look]
            .into_iter()
            .flatten()
            .min()
    }
}

/// 0 is never, and so is a time beyond what the clock can hold.
fn after(start: Instant, milliseconds: u64) -> Option<Instant> {
    let limit = Duration::from_millis(milliseconds);
    if milliseconds == 0 {
        None
    } else {
        start.checked_add(limit)
    }
}
