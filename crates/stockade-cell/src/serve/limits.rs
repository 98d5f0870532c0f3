//! Limits that the cell measures because the kernel does not hold them here. They hold on average and with a delay;
//! the plan says so (grade "watched").

use std::time::{Duration, Instant};

use super::commands::Commands;
use super::confinement::Confinement;
use super::disk::{DiskUse, DiskWalk};
use super::processes::{Detail, Process, ProcessTable};
use super::resolve::Resolver;
use super::stats::Usage;
use super::throttle::Throttle;
use super::tree;
use crate::wire::message::reason;
use crate::wire::plan::Watch;

/// Between two samples of memory and CPU time.
const SAMPLE: Duration = Duration::from_millis(100);
/// Between two walks over the disk paths.
const WALK: Duration = Duration::from_secs(2);
/// Measuring takes at most a twentieth of a core: what took long is done less often.
const COST_FACTOR: u32 = 20;

/// The watched limits of this sandbox.
#[derive(Debug)]
pub struct Limits {
    watch: Watch,
    throttle: Option<Throttle>,
    next_sample: Option<Instant>,
    walk: Option<DiskWalk>,
    next_walk: Option<Instant>,
    walk_cost: Duration,
    /// What lay there when the sandbox began: the limit is on what is added.
    before: Option<DiskUse>,
}

impl Limits {
    /// 0 means not watched.
    #[must_use]
    pub fn new(watch: Watch) -> Self {
        let throttle = (watch.cpu_millicores > 0)
            .then(|| Throttle::new(watch.cpu_millicores, watch.cpu_window_ms));
        Self {
            watch,
            throttle,
            next_sample: None,
            walk: None,
            next_walk: None,
            walk_cost: Duration::ZERO,
            before: None,
        }
    }

    /// Measure what is due. True when the walk over the disk goes on at once. Without a live command nothing is
    /// measured: nothing of the payload runs, and an idle sandbox does not wake up.
    pub fn check(
        &mut self,
        commands: &mut Commands,
        table: &ProcessTable,
        confinement: &Confinement,
        resolver: &Resolver,
        now: Instant,
    ) -> bool {
        if commands.count() == 0 && !self.wants_baseline() {
            self.pause();
            return false;
        }
        self.sample_if_due(commands, table, confinement, now);
        self.walk_if_due(commands, confinement, resolver, now)
    }

    /// When something is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let throttle = self.throttle.as_ref().and_then(Throttle::deadline);
        let walk = self.next_walk.filter(|_| self.walk.is_none());
        let walk = walk.or_else(|| self.wants_baseline().then(Instant::now));
        [throttle, self.next_sample, walk]
            .into_iter()
            .flatten()
            .min()
    }

    /// What a user's directory holds is counted before anything is added to it.
    fn wants_baseline(&self) -> bool {
        self.is_disk_watched() && self.before.is_none()
    }

    fn is_disk_watched(&self) -> bool {
        self.watch.disk_bytes > 0 || self.watch.disk_inodes > 0
    }

    fn pause(&mut self) {
        if let Some(throttle) = &mut self.throttle {
            throttle.pause();
        }
        self.next_sample = None;
        self.next_walk = None;
        self.walk = None;
    }

    fn sample_if_due(
        &mut self,
        commands: &mut Commands,
        table: &ProcessTable,
        confinement: &Confinement,
        now: Instant,
    ) {
        if let Some(throttle) = &mut self.throttle {
            throttle.resume_if_due(table, now);
        }
        if self.watch.memory_bytes == 0 && self.throttle.is_none() {
            return;
        }
        if *self.next_sample.get_or_insert(now) > now {
            return;
        }
        // No descriptor left to look with: the next sample.
        if let Ok(processes) = table.scan(Detail::Times) {
            let usage = Usage::of(&processes);
            if let Some(throttle) = &mut self.throttle {
                if throttle.sample(&processes, usage.user_us + usage.system_us, now) {
                    // No scan shows it, so nothing else would wake it, and the next command would stand still.
                    commands.wake_spare();
                }
            }
            let limit_kib = self.watch.memory_bytes / 1024;
            if limit_kib > 0 && usage.rss_kib > limit_kib {
                kill_biggest(commands, table, confinement, now);
            }
        }
        let end = Instant::now();
        let cost = end.duration_since(now) * COST_FACTOR;
        self.next_sample = Some(end + SAMPLE.max(cost));
    }

    fn walk_if_due(
        &mut self,
        commands: &mut Commands,
        confinement: &Confinement,
        resolver: &Resolver,
        now: Instant,
    ) -> bool {
        if !self.is_disk_watched() {
            return false;
        }
        // The first walk finds what was there, so it begins at once.
        let first = if self.before.is_none() {
            now
        } else {
            now + WALK
        };
        if *self.next_walk.get_or_insert(first) > now {
            return false;
        }
        let paths = &self.watch.disk_paths;
        let walk = self.walk.get_or_insert_with(|| DiskWalk::new(paths));
        let used = confinement.as_payload(|| Ok(walk.step(resolver)));
        self.walk_cost += now.elapsed();
        let Ok(Some(used)) = used else {
            return true;
        };
        self.walk = None;
        self.next_walk = Some(Instant::now() + WALK.max(self.walk_cost * COST_FACTOR));
        self.walk_cost = Duration::ZERO;
        let before = *self.before.get_or_insert(used);
        if self.is_over(used, before) {
            // Who wrote can't be told, so everybody who could go on writing ends.
            for id in commands.ids() {
                commands.kill(id, reason::DISK, now);
            }
        }
        false
    }

    fn is_over(&self, used: DiskUse, before: DiskUse) -> bool {
        let over = |used: u64, before: u64, limit| limit > 0 && used.saturating_sub(before) > limit;
        over(used.bytes, before.bytes, self.watch.disk_bytes)
            || over(used.inodes, before.inodes, self.watch.disk_inodes)
    }
}

/// End the command whose tree has the most memory.
fn kill_biggest(
    commands: &mut Commands,
    table: &ProcessTable,
    confinement: &Confinement,
    now: Instant,
) {
    let Ok(processes) = tree::scan(table, confinement.has_tags()) else {
        return;
    };
    let sum = |members: Vec<&Process>| members.iter().map(|process| process.rss_kib).sum::<u64>();
    let sizes = commands.marks().into_iter().map(|(id, mark, others)| {
        let members = tree::members(&processes, mark, &others);
        (sum(members), id)
    });
    if let Some((_, id)) = sizes.max() {
        commands.kill(id, reason::MEMORY, now);
    }
}
