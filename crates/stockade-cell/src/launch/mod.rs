//! Building the wall: reads the plan, applies it step by step, and turns into the cell.
//!
//! Two processes: the launcher keeps the host's rights, opens what lies outside and writes the id maps; the process
//! that it clones into the new namespaces builds the inside and becomes the cell. The launcher exits before anything
//! of the agent's runs. A step that fails ends both, and the host is told which.

mod build;
mod cgroup;
mod error;
mod network;
mod report;
mod seal;
mod text;
mod tree;
mod user;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use self::build::Builder;
use self::cgroup::Cgroups;
use self::error::{AtStep, LaunchError, LaunchResult};
use self::network::NewNetwork;
use self::report::Phases;
use self::tree::Trees;
use crate::serve::Cell;
use crate::sys::{file, ident, io, process};
use crate::wire::frame::Decoder;
use crate::wire::message::{FromCell, PROTOCOL_VERSION, Ready, Spawned};
use crate::wire::plan::{LAUNCH, LAUNCH_INNER_USER, Launch, NONE, Step};

/// The control channel, and a pidfd of the owner: the numbers that the host starts us with.
const CHANNEL: i32 = 3;
const OWNER: i32 = 4;
/// Made by a helper of the cell, see `network`.
const NEWNET: u64 = 0x4000_0000;
/// How long the host may take to send the plan.
const PLAN_TIMEOUT_MS: i32 = 5_000;

/// `stockade-cell launch`. Returns only when the launch failed.
pub fn run() -> i32 {
    let channel = io::adopt(CHANNEL);
    let owner = io::adopt(OWNER);
    match close_the_rest().and_then(|()| launch(&channel, owner)) {
        Ok(()) => 0,
        Err(error) => {
            report::fail(channel.as_fd(), &error);
            1
        }
    }
}

/// The embedding program's own descriptors end here, the standard ones too: a cell that kept its terminal or a pipe
/// of it would hold them open, and a host directory among them would be a way out (CVE-2024-21626).
fn close_the_rest() -> LaunchResult<()> {
    const STEP: &str = "close inherited descriptors";
    io::close_from(OWNER.unsigned_abs() + 1).at(STEP, "close_range")?;
    let null = file::open_at(None, c"/dev/null", libc::O_RDWR, 0, 0).at(STEP, "/dev/null")?;
    (0..3)
        .try_for_each(|standard| process::duplicate_to(null.as_fd(), standard))
        .at(STEP, "dup2")?;
    // newuidmap(1) inherits nothing but the standard ones.
    process::close_on_exec_from(CHANNEL.unsigned_abs()).at(STEP, "close-on-exec")
}

fn launch(channel: &OwnedFd, owner: OwnedFd) -> LaunchResult<()> {
    let mut phases = Phases::start();
    let plan = receive(channel.as_fd())?;
    phases.end("receive the plan");
    let cell_owner = user::outside(&plan.identity.uid_map, plan.identity.cell_uid)
        .filter(|_| plan.identity.become_uid != NONE);
    let made = cgroup::make(&plan.cgroups, cell_owner);
    let result = made.and_then(|cgroups| {
        phases.end("cgroups");
        clone_cell(channel, owner, &plan, cgroups, phases)
    });
    if result.is_err() {
        cgroup::remove(&plan.cgroups);
    }
    result
}

/// Read exactly one LAUNCH frame.
fn receive(channel: BorrowedFd) -> LaunchResult<Launch> {
    const STEP: &str = "receive the plan";
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        if !io::poll_one(channel, libc::POLLIN, PLAN_TIMEOUT_MS).at(STEP, "poll")? {
            return Err(LaunchError::check(STEP, "no plan arrived in time"));
        }
        let count = io::read(channel, &mut buffer).at(STEP, "read")?;
        if count == 0 {
            return Err(LaunchError::check(STEP, "the channel ended"));
        }
        decoder.feed(buffer.get(..count).unwrap_or_default());
        let malformed = |error| LaunchError::check(STEP, format!("malformed plan: {error}"));
        if let Some(raw) = decoder.next_raw().map_err(malformed)? {
            if raw.kind != LAUNCH || !decoder.is_empty() {
                return Err(LaunchError::check(STEP, "not a single LAUNCH frame"));
            }
            let plan = Launch::decode(&raw.body).map_err(malformed)?;
            if plan.version != PROTOCOL_VERSION {
                return Err(LaunchError::check(
                    STEP,
                    format!("protocol version {}", plan.version),
                ));
            }
            return Ok(plan);
        }
    }
}

/// Clone the cell into its namespaces, write its maps, tell the host, and let it go.
fn clone_cell(
    channel: &OwnedFd,
    owner: OwnedFd,
    plan: &Launch,
    cgroups: Cgroups,
    mut phases: Phases,
) -> LaunchResult<()> {
    let privileged = plan.identity.become_uid != NONE;
    // With the host's rights now, or by the cell under the user's own.
    let trees = if privileged {
        Trees::open_all(&plan.steps, &plan.identity)?
    } else {
        Trees::default()
    };
    phases.end("open host directories");
    user::become_base(&plan.identity)?;
    let (link, cells_link) = io::stream_pair().at("clone", "socketpair")?;
    // Our sibling: when we exit, it is the host process's own child, which can wait for it.
    let flags = plan.namespaces & !NEWNET | u64::from(libc::CLONE_PARENT.unsigned_abs());
    let forked = ident::fork(flags, cgroups.cell_directory()).at("clone", "clone3")?;
    match forked {
        ident::Forked::Child => {
            drop(link);
            if !io::read(cells_link.as_fd(), &mut [0]).is_ok_and(|count| count == 1) {
                ident::exit_now(1); // the launcher failed, and has told the host
            }
            phases.end("clone and map ids");
            let inherited = Inherited {
                owner,
                cgroups,
                trees,
                launcher: cells_link,
            };
            become_cell(channel, plan, inherited, phases)
        }
        ident::Forked::Parent { pid, pidfd } => {
            drop(cells_link);
            let spawned = FromCell::Spawned(Spawned { pid });
            let done = report::send(channel.as_fd(), &spawned, &[pidfd.as_fd()])
                .at("clone", "tell the host")
                .and_then(|()| user::write_maps(pid, &plan.identity))
                .and_then(|()| io::write_all(link.as_fd(), b"g").at("clone", "go"))
                .and_then(|()| hand_over_joined(plan, &link));
            if done.is_err() {
                // It waits for what will not come; killed, so that its cgroup can be removed.
                let _ = ident::signal(pidfd.as_fd(), libc::SIGKILL);
            }
            done
        }
    }
}

/// Make the v1 cgroups while the cell builds its file system, and send them to it.
fn hand_over_joined(plan: &Launch, link: &OwnedFd) -> LaunchResult<()> {
    user::become_root(&plan.identity)?;
    let joined = cgroup::make_joined(&plan.cgroups)?;
    let fds: Vec<_> = joined.iter().map(AsFd::as_fd).collect();
    io::send_with_fds(link.as_fd(), b"j", &fds).at("cgroups", "hand over")
}

/// What the cell has from the launcher.
#[derive(Debug)]
struct Inherited {
    owner: OwnedFd,
    cgroups: Cgroups,
    trees: Trees,
    /// Brings the v1 cgroups; its end is the launcher's.
    launcher: OwnedFd,
}

/// Inside the namespaces: build, seal, report, serve.
fn become_cell(channel: &OwnedFd, plan: &Launch, inherited: Inherited, phases: Phases) -> ! {
    let cell = build_and_seal(channel, plan, inherited, phases);
    match cell {
        Ok(cell) => crate::serve::run(cell),
        Err(error) => {
            report::fail(channel.as_fd(), &error);
            ident::exit_now(1)
        }
    }
}

fn build_and_seal(
    channel: &OwnedFd,
    plan: &Launch,
    inherited: Inherited,
    mut phases: Phases,
) -> LaunchResult<Cell> {
    become_inside_root(plan)?;
    let network = start_network(plan)?;
    // The namespace's root is the cgroup that we are in, so it can't be a flag of the clone that put us there.
    ident::unshare(libc::CLONE_NEWCGROUP).at("cgroup namespace", "unshare")?;
    let mut trees = inherited.trees;
    if plan.identity.become_uid == NONE {
        trees = Trees::open_all(&plan.steps, &plan.identity)?;
        phases.end("open host directories");
    }
    build_root(plan, trees, network)?;
    phases.end("build the root file system");
    let joined = io::receive_with_fds(inherited.launcher.as_fd(), &mut [0], io::MAX_FDS);
    let (1, join_cgroups) = joined.at("cgroups", "receive")? else {
        ident::exit_now(1) // the launcher failed, and has told the host
    };
    let landlock = seal::landlock(plan)?;
    let passed = open_passed(plan)?;
    let listener = seal::drop_rights(plan)?;
    phases.end("seal");
    tell_ready(
        channel.as_fd(),
        plan,
        &listener,
        &passed,
        landlock.is_some(),
        phases,
    )?;
    let duplicate = channel
        .try_clone()
        .map_err(|_| LaunchError::check("seal", "dup"))?;
    Ok(Cell {
        channel: duplicate,
        owner: inherited.owner,
        identity: plan.identity.clone(),
        work_cgroup: inherited.cgroups.work,
        join_cgroups,
        landlock,
        seccomp_child: plan.seccomp_child.0.clone(),
        rlimits: plan.rlimits.clone(),
        roots: plan.roots.clone(),
        watch: plan.watch.clone(),
    })
}

fn build_root(plan: &Launch, trees: Trees, mut network: Option<NewNetwork>) -> LaunchResult<()> {
    let inner = plan.flags & LAUNCH_INNER_USER != 0;
    let identity = user::builder(&plan.identity, inner);
    let mut builder = Builder::new(&identity, trees);
    for (index, step) in plan.steps.iter().enumerate() {
        // sysfs shows the network namespace that it was mounted in.
        if matches!(step, Step::Sysfs(_)) {
            network.take().map_or(Ok(()), NewNetwork::join)?;
        }
        builder.apply(index, step)?;
    }
    drop(builder);
    network.map_or(Ok(()), NewNetwork::join)?;
    if inner {
        user::enter_inner(&plan.identity)?;
    }
    Ok(())
}

fn start_network(plan: &Launch) -> LaunchResult<Option<NewNetwork>> {
    if plan.namespaces & NEWNET == 0 {
        return Ok(None);
    }
    let loopback = plan
        .steps
        .iter()
        .any(|step| matches!(step, Step::Loopback(_)));
    NewNetwork::start(loopback).map(Some)
}

/// Where inside root is mapped, build as it: what is made belongs to root, not to the payload.
fn become_inside_root(plan: &Launch) -> LaunchResult<()> {
    let identity = &plan.identity;
    if user::outside(&identity.uid_map, 0).is_none() {
        return Ok(());
    }
    // With a single id setgroups(2) is denied for good, and the user's own groups mean nothing that is mapped.
    if plan.flags & LAUNCH_INNER_USER == 0 {
        ident::set_groups(&[]).at("identity", "setgroups")?;
    }
    ident::set_gid(0).at("identity", "inside gid 0")?;
    // A change from a non-root id to root 0 keeps the capabilities of the new namespace.
    ident::set_uid(0).at("identity", "inside uid 0")
}

fn open_passed(plan: &Launch) -> LaunchResult<Vec<OwnedFd>> {
    let open = |path: &String| {
        let text = text::c_string("pass out mounts", path)?;
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        file::open_at(None, &text, flags, 0, libc::RESOLVE_NO_MAGICLINKS)
            .at("pass out mounts", path)
    };
    plan.pass_out.iter().map(open).collect()
}

fn tell_ready(
    channel: BorrowedFd,
    plan: &Launch,
    listener: &OwnedFd,
    passed: &[OwnedFd],
    landlock: bool,
    phases: Phases,
) -> LaunchResult<()> {
    let mut names = vec!["seccomp".to_owned()];
    names.extend(plan.pass_out.iter().cloned());
    let mut fds = vec![listener.as_fd()];
    fds.extend(passed.iter().map(AsFd::as_fd));
    let ready = Ready {
        version: PROTOCOL_VERSION,
        protections: protections(plan, landlock),
        timings: phases.times(),
        fds: names,
    };
    report::send(channel, &FromCell::Ready(ready), &fds).at("ready", "tell the host")
}

/// What was put up; each was checked by the step that made it.
fn protections(plan: &Launch, landlock: bool) -> Vec<String> {
    let namespaces = [
        (libc::CLONE_NEWUSER, "user namespace"),
        (libc::CLONE_NEWNS, "mount namespace"),
        (libc::CLONE_NEWPID, "pid namespace"),
        (libc::CLONE_NEWNET, "network namespace"),
        (libc::CLONE_NEWIPC, "ipc namespace"),
        (libc::CLONE_NEWUTS, "uts namespace"),
    ];
    let mut list: Vec<String> = namespaces
        .iter()
        .filter(|(flag, _)| plan.namespaces & u64::from(flag.unsigned_abs()) != 0)
        .map(|(_, name)| (*name).to_owned())
        .collect();
    list.push("cgroup namespace".to_owned());
    list.push("no capabilities".to_owned());
    list.push("no new privileges".to_owned());
    list.push("seccomp".to_owned());
    if landlock {
        list.push(format!("landlock abi {}", ident::landlock_abi()));
    }
    if seal::separate_ids(&plan.identity) {
        list.push("cell under its own uid".to_owned());
    }
    list
}
