//! A watched CPU limit: when the payload has used its share of a window, all of it stops until the share fits again.

use std::time::{Duration, Instant};

use super::processes::{Detail, Process, ProcessTable};
use super::tree;
use crate::sys::process::kill;

/// SIGSTOP and SIGCONT in turn.
#[derive(Debug)]
pub struct Throttle {
    millicores: u64,
    window: Duration,
    /// Start of the window, and the CPU time that had been used then.
    began: Option<(Instant, u64)>,
    stopped: Option<Stopped>,
}

#[derive(Debug)]
struct Stopped {
    until: Instant,
    /// Stopped before by somebody else: not ours to wake.
    before: Vec<libc::pid_t>,
}

impl Throttle {
    /// `millicores` thousandths of a core, averaged over `window_ms`.
    #[must_use]
    pub fn new(millicores: u32, window_ms: u32) -> Self {
        Self {
            millicores: u64::from(millicores.max(1)),
            window: Duration::from_millis(u64::from(window_ms.max(1))),
            began: None,
            stopped: None,
        }
    }

    /// When the payload goes on.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.stopped.as_ref().map(|stopped| stopped.until)
    }

    /// No command lives: the next one starts with a fresh window.
    pub fn pause(&mut self) {
        self.began = None;
        self.stopped = None;
    }

    /// `used_us` is the CPU time of everything so far. True when everybody was stopped, the spare too.
    pub fn sample(&mut self, processes: &[Process], used_us: u64, now: Instant) -> bool {
        let (start, base) = *self.began.get_or_insert((now, used_us));
        if self.stopped.is_some() {
            return false;
        }
        // The time in which this much may be used: microseconds of CPU * 1000 / millicores.
        let fair = used_us.saturating_sub(base).saturating_mul(1000) / self.millicores;
        let fair = Duration::from_micros(fair);
        if fair > self.window.max(now.duration_since(start)) {
            self.stop(processes, start + fair);
            return true;
        }
        if now.duration_since(start) >= self.window {
            self.began = Some((now, used_us));
        }
        false
    }

    fn stop(&mut self, processes: &[Process], until: Instant) {
        let before = processes.iter().filter(|process| process.stopped);
        let before = before.map(|process| process.pid).collect();
        tree::signal_all(libc::SIGSTOP);
        self.stopped = Some(Stopped { until, before });
    }

    /// Let the payload go on when its time has come.
    pub fn resume_if_due(&mut self, table: &ProcessTable, now: Instant) {
        if self
            .stopped
            .as_ref()
            .is_none_or(|stopped| stopped.until > now)
        {
            return;
        }
        let Ok(processes) = table.scan(Detail::Times) else {
            return;
        };
        let before = self
            .stopped
            .take()
            .map(|stopped| stopped.before)
            .unwrap_or_default();
        for process in processes.iter().filter(|process| process.stopped) {
            if !before.contains(&process.pid) {
                // ESRCH: it was killed meanwhile.
                let _ = kill(process.pid, libc::SIGCONT);
            }
        }
    }
}
