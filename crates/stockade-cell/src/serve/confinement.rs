//! What every command is put into: ids, cgroups, limits, Landlock, its filter.

use std::os::fd::OwnedFd;

use super::refusal::Refusal;
use crate::sys::process;
use crate::wire::message::{Rlimit, code};
use crate::wire::plan::{IdMap, Identity};

/// The parts of the plan that each command needs again.
#[derive(Debug)]
pub struct Confinement {
    /// Inside ids of cell and payload, and the tag groups.
    pub identity: Identity,
    /// cgroup2 directory to be born in.
    pub work_cgroup: Option<OwnedFd>,
    /// `tasks` of v1 hierarchies to join.
    pub join_cgroups: Vec<OwnedFd>,
    /// Landlock ruleset.
    pub landlock: Option<OwnedFd>,
    /// `struct sock_filter[]`.
    pub seccomp_child: Vec<u8>,
    /// Limits that differ from the cell's own.
    pub rlimits: Vec<Rlimit>,
    /// /dev/null, for a command without standard input.
    pub null: OwnedFd,
}

/// Who a command runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandIds {
    /// Inside user id.
    pub uid: u32,
    /// Inside group id.
    pub gid: u32,
    /// The supplementary group that marks the command's processes.
    pub tag: u32,
}

impl Confinement {
    /// True when cell and payload have different ids, and commands are marked by tag groups.
    #[must_use]
    pub fn has_tags(&self) -> bool {
        self.identity.tag_count > 0
    }

    /// Every descriptor that a new process still needs.
    pub fn descriptors(&self) -> impl Iterator<Item = &OwnedFd> {
        let optional = self.work_cgroup.iter().chain(&self.landlock);
        optional.chain(&self.join_cgroups).chain([&self.null])
    }

    /// Check the ids that a START asks for. `None` when there is nothing to switch to.
    pub fn ids(&self, uid: u32, gid: u32, tag: Option<u32>) -> Result<Option<CommandIds>, Refusal> {
        let identity = &self.identity;
        let refused = Refusal::rule(code::REFUSED, "user or group id");
        let Some(tag) = tag else {
            let same = uid == identity.payload_uid && gid == identity.payload_gid;
            return if same { Ok(None) } else { Err(refused) };
        };
        let tags = identity.tag_gid..identity.tag_gid.saturating_add(identity.tag_count);
        let may_be_user = uid == identity.payload_uid || (uid == 0 && maps_zero(&identity.uid_map));
        let may_be_group =
            gid == identity.payload_gid || (gid == 0 && maps_zero(&identity.gid_map));
        let own = uid == identity.cell_uid || gid == identity.cell_gid || tags.contains(&gid);
        if may_be_user && may_be_group && !own {
            Ok(Some(CommandIds { uid, gid, tag }))
        } else {
            Err(refused)
        }
    }

    /// Run `work` with the payload's file system ids: what it opens and makes is the payload's.
    ///
    /// Only opening and changing names needs it; an open descriptor carries its own rights.
    pub fn as_payload<T>(&self, work: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
        self.with_file_ids(self.identity.payload_uid, self.identity.payload_gid, work)
    }

    /// As `as_payload`, with other ids.
    pub fn with_file_ids<T>(
        &self,
        uid: u32,
        gid: u32,
        work: impl FnOnce() -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        if !self.has_tags() {
            return work();
        }
        process::set_file_ids(uid, gid);
        let result = work();
        process::set_file_ids(self.identity.cell_uid, self.identity.cell_gid);
        result
    }
}

fn maps_zero(map: &[IdMap]) -> bool {
    map.iter().any(|line| line.inside == 0 && line.count > 0)
}

/// Leave out the limits that the cell has itself, since children inherit them: a system call less per command,
/// and `RLIMIT_CORE`, which the main filter lets nobody change.
#[must_use]
pub fn differing_limits(limits: Vec<Rlimit>) -> Vec<Rlimit> {
    let differs = |limit: &Rlimit| process::rlimit(limit.resource) != Ok((limit.soft, limit.hard));
    limits.into_iter().filter(differs).collect()
}
