//! The end of the launch: the cell gives up every right that serving does not need, and reads back what it is.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use super::error::{AtStep, LaunchError, LaunchResult};
use super::text::c_string;
use crate::sys::{file, ident};
use crate::wire::plan::{
    Identity, LAUNCH_LANDLOCK, LAUNCH_LANDLOCK_SIGNALS, LandlockRule, Launch, access,
};

const STEP: &str = "seal";
/// CAP_KILL, CAP_SETGID and CAP_SETUID: to start commands as the payload and to end them.
const CELL_CAPABILITIES: u64 = 1 << 5 | 1 << 6 | 1 << 7;

/// SECBIT_NOROOT, SECBIT_NO_SETUID_FIXUP and SECBIT_NO_CAP_AMBIENT_RAISE with their locks, and the lock of
/// SECBIT_KEEP_CAPS: a uid never gives or takes capabilities here, and nothing can change that.
const SECURE_BITS: u64 = 0b11 | 0b11 << 2 | 1 << 5 | 0b11 << 6;

/// Landlock's file system rights by ABI: the number of bits that ABI 1, 2, 3 and 5 know.
fn handled_rights(abi: u32) -> u64 {
    let bits = match abi {
        0 => 0,
        1 => 13,
        2 => 14,
        3..=4 => 15,
        _ => 16,
    };
    (1 << bits) - 1
}

/// EXECUTE, READ_FILE, READ_DIR
const READ_RIGHTS: u64 = 1 | 1 << 2 | 1 << 3;
/// WRITE_FILE, TRUNCATE and IOCTL_DEV besides
const DEVICE_RIGHTS: u64 = READ_RIGHTS | 1 << 1 | 1 << 14 | 1 << 15;
/// EXECUTE, WRITE_FILE, READ_FILE, TRUNCATE, IOCTL_DEV: what a rule on a file, not a directory, may name
const FILE_RIGHTS: u64 = 0b111 | 1 << 14 | 1 << 15;
/// LANDLOCK_SCOPE_SIGNAL
const SCOPE_SIGNAL: u64 = 1 << 1;
/// The first ABI with scopes.
const ABI_SCOPES: u32 = 6;

/// The ruleset that every command applies to itself.
pub fn landlock(launch: &Launch) -> LaunchResult<Option<OwnedFd>> {
    if launch.flags & LAUNCH_LANDLOCK == 0 {
        return Ok(None);
    }
    let abi = ident::landlock_abi();
    if abi == 0 {
        return Err(LaunchError::check("landlock", "the kernel has no Landlock"));
    }
    let signals = launch.flags & LAUNCH_LANDLOCK_SIGNALS != 0;
    if signals && abi < ABI_SCOPES {
        return Err(LaunchError::check(
            "landlock",
            "signal scopes need Landlock ABI 6",
        ));
    }
    let handled = handled_rights(abi);
    let scoped = if signals { SCOPE_SIGNAL } else { 0 };
    let ruleset = ident::landlock_ruleset(abi, handled, scoped).at("landlock", "ruleset")?;
    for rule in &launch.landlock {
        allow(&ruleset, rule, handled)?;
    }
    Ok(Some(ruleset))
}

fn allow(ruleset: &OwnedFd, rule: &LandlockRule, handled: u64) -> LaunchResult<()> {
    let path = c_string("landlock", &rule.path)?;
    let beneath = file::open_at(None, &path, libc::O_PATH, 0, libc::RESOLVE_NO_MAGICLINKS)
        .at("landlock", &rule.path)?;
    let rights = match rule.access {
        access::READ => READ_RIGHTS,
        access::DEVICE => DEVICE_RIGHTS,
        access::WRITE => u64::MAX,
        other => return Err(LaunchError::check("landlock", format!("access {other}"))),
    };
    let kind = if file::is_directory(beneath.as_fd()).at("landlock", &rule.path)? {
        u64::MAX
    } else {
        FILE_RIGHTS
    };
    ident::landlock_allow(ruleset.as_fd(), beneath.as_fd(), rights & handled & kind)
        .at("landlock", &rule.path)
}

/// True where cell and payload have ids of their own.
#[must_use]
pub fn separate_ids(identity: &Identity) -> bool {
    identity.cell_uid != identity.payload_uid
}

/// Drop rights, load the filter, and return its notification listener.
pub fn drop_rights(launch: &Launch) -> LaunchResult<OwnedFd> {
    let identity = &launch.identity;
    let separate = separate_ids(identity);
    ident::empty_bounding_set().at(STEP, "bounding set")?;
    ident::prctl(libc::PR_SET_SECUREBITS, SECURE_BITS).at(STEP, "securebits")?;
    if separate {
        ident::set_groups(&[]).at(STEP, "setgroups")?;
    }
    ident::set_gid(identity.cell_gid).at(STEP, "setresgid")?;
    ident::set_uid(identity.cell_uid).at(STEP, "setresuid")?;
    let caps = if separate { CELL_CAPABILITIES } else { 0 };
    ident::set_capabilities(caps).at(STEP, "capset")?;
    ident::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).at(STEP, "no_new_privs")?;
    ident::prctl(libc::PR_SET_DUMPABLE, 0).at(STEP, "dumpable")?;
    ident::set_name(c"stockade-cell").at(STEP, "name")?;
    if launch.seccomp_main.0.is_empty() || launch.seccomp_child.0.is_empty() {
        return Err(LaunchError::check("seccomp", "the plan has no filter"));
    }
    let listener =
        ident::install_main_filter(&launch.seccomp_main.0).at("seccomp", "main filter")?;
    check_status(caps)?;
    Ok(listener)
}

/// Compare what /proc says of us with what we asked for.
fn check_status(caps: u64) -> LaunchResult<()> {
    let status = fs::read_to_string("/proc/self/status")
        .map_err(|error| LaunchError::check(STEP, format!("/proc/self/status: {error}")))?;
    let none = format!("{:016x}", 0);
    let caps = format!("{caps:016x}");
    let wanted = [
        ("CapInh", none.as_str()),
        ("CapPrm", &caps),
        ("CapEff", &caps),
        ("CapBnd", &none),
        ("CapAmb", &none),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
        ("Seccomp_filters", "1"),
    ];
    for (field, value) in wanted {
        let found = field_of(&status, field);
        // Seccomp_filters counts the filters that we inherited too: a sandbox inside another has more.
        let more = field == "Seccomp_filters" && found.parse::<u32>().is_ok_and(|n| n >= 1);
        if found != value && !more {
            return Err(LaunchError::check(
                STEP,
                format!("{field} reads back as {found:?}, not {value}"),
            ));
        }
    }
    Ok(())
}

fn field_of<'a>(status: &'a str, field: &str) -> &'a str {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_default().trim()
}
