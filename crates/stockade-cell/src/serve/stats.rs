//! What the cell counts itself: the answer to STATS.

use super::processes::{Detail, Process, ProcessTable};
use crate::sys::process::usage_of_reaped;
use crate::wire::message::{FromCell, StatsResult};

/// CPU time of everything that ever ran, and what runs now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Living processes.
    pub processes: u32,
    /// Their resident memory; what they share counts for each.
    pub rss_kib: u64,
    /// In user mode, with the dead.
    pub user_us: u64,
    /// In the kernel, with the dead.
    pub system_us: u64,
}

impl Usage {
    /// Sum up a scan. Only what a parent has not waited for yet is missing.
    #[must_use]
    pub fn of(processes: &[Process]) -> Self {
        let dead = usage_of_reaped().unwrap_or_default();
        let living = processes.iter().filter(|process| process.alive);
        Self {
            processes: u32::try_from(living.clone().count()).unwrap_or(u32::MAX),
            rss_kib: living.map(|process| process.rss_kib).sum(),
            user_us: dead.user_us + processes.iter().map(|process| process.user_us).sum::<u64>(),
            system_us: dead.system_us
                + processes
                    .iter()
                    .map(|process| process.system_us)
                    .sum::<u64>(),
        }
    }
}

/// Count now. What can't be read (no descriptor left) counts as nothing.
#[must_use]
pub fn collect(table: &ProcessTable, commands: usize) -> FromCell {
    let processes = table.scan(Detail::Times).unwrap_or_default();
    let usage = Usage::of(&processes);
    let open_fds = table.own_descriptors().unwrap_or(0);
    FromCell::StatsResult(StatsResult {
        processes: usage.processes,
        commands: u32::try_from(commands).unwrap_or(u32::MAX),
        rss_kib: usage.rss_kib,
        user_us: usage.user_us,
        system_us: usage.system_us,
        open_fds: u32::try_from(open_fds).unwrap_or(u32::MAX),
    })
}
