//! Which descriptor an epoll event is about: a source and the id of its operation in one number.

/// Kinds of descriptors that the loop waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The control channel.
    Channel,
    /// The owner's pidfd.
    Owner,
    /// The signalfd for SIGCHLD.
    Children,
    /// The pipe on which a new process reports a failed step.
    Status,
    /// A command's standard input.
    Stdin,
    /// A command's standard output, or its terminal.
    Stdout,
    /// A command's standard error.
    Stderr,
    /// An inotify instance.
    Watch,
}

const SOURCES: [Source; 8] = [
    Source::Channel,
    Source::Owner,
    Source::Children,
    Source::Status,
    Source::Stdin,
    Source::Stdout,
    Source::Stderr,
    Source::Watch,
];

/// The number to register a descriptor with.
#[must_use]
pub fn token(source: Source, id: u32) -> u64 {
    let number = SOURCES.iter().position(|known| *known == source);
    let number = number.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
    (number << 32) | u64::from(id)
}

/// What `token` was made of.
#[must_use]
pub fn source_of(token: u64) -> Option<(Source, u32)> {
    let source = SOURCES.get(usize::try_from(token >> 32).ok()?)?;
    let id = u32::try_from(token & u64::from(u32::MAX)).ok()?;
    Some((*source, id))
}
