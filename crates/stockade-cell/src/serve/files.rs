//! All file operations under way: one bounded step of each per turn.

use std::collections::BTreeMap;

use super::change;
use super::channel::{Channel, ChannelError};
use super::confinement::Confinement;
use super::listing::{self, Listing};
use super::refusal::Refusal;
use super::removal::{self, Removal, Removed};
use super::resolve::Resolver;
use super::transfer::{FileReader, FileWriter};
use crate::wire::message::{End, FromCell, Ok as Done, ToCell, code};

/// Operations that take more than one turn: each has at most two descriptors.
pub const MAX_TRANSFERS: usize = 64;

/// What a step came to.
#[derive(Debug)]
pub enum Progress {
    /// There is more to do.
    More,
    /// The last frame.
    Done(FromCell),
}

#[derive(Debug)]
enum Job {
    Read(FileReader),
    Write(FileWriter),
    List(Listing),
    Remove(Box<Removal>),
}

/// Operations under way, by id.
#[derive(Debug, Default)]
pub struct Files {
    jobs: BTreeMap<u32, Job>,
}

impl Files {
    /// True when an operation has this id.
    #[must_use]
    pub fn is_live(&self, id: u32) -> bool {
        self.jobs.contains_key(&id)
    }

    /// Carry out a request, or begin to. All of it with the payload's rights.
    pub fn request(
        &mut self,
        id: u32,
        message: &ToCell,
        confinement: &Confinement,
        resolver: &Resolver,
        channel: &mut Channel,
    ) {
        let begun = confinement.as_payload(|| self.begin(id, message, resolver, channel));
        match begun {
            Ok(Some(answer)) => channel.send(id, &answer),
            Ok(None) => {}
            Err(refusal) => channel.send(id, &refusal.message()),
        }
    }

    /// The answer, or `None` when it takes turns.
    fn begin(
        &mut self,
        id: u32,
        message: &ToCell,
        resolver: &Resolver,
        channel: &mut Channel,
    ) -> Result<Option<FromCell>, Refusal> {
        if self.jobs.len() >= MAX_TRANSFERS {
            return Err(Refusal::rule(code::LIMIT, "transfers"));
        }
        let job = match message {
            ToCell::FileStat(request) => return listing::stat(request, resolver).map(Some),
            ToCell::FileMkdir(request) => {
                return change::make_directory(request, resolver).map(Some);
            }
            ToCell::FileMove(request) => return change::rename(request, resolver).map(Some),
            ToCell::FileRemove(request) => match removal::remove(request, resolver)? {
                Removed::Now => return Ok(Some(FromCell::Ok(Done {}))),
                Removed::Tree(removal) => Job::Remove(removal),
            },
            ToCell::FileList(request) => Job::List(Listing::open(request, resolver)?),
            ToCell::FileRead(request) => Job::Read(FileReader::open(request, resolver)?),
            ToCell::FileWrite(request) => {
                Job::Write(FileWriter::open(id, request, resolver, channel)?)
            }
            _ => return Err(Refusal::rule(code::REFUSED, "not a file operation")),
        };
        self.jobs.insert(id, job);
        Ok(None)
    }

    /// More credit for a read.
    pub fn grant(&mut self, id: u32, count: u32) {
        if let Some(Job::Read(reader)) = self.jobs.get_mut(&id) {
            reader.grant(count);
        }
    }

    /// Bytes for a write.
    pub fn push(
        &mut self,
        id: u32,
        data: &[u8],
        channel: &mut Channel,
    ) -> Result<(), ChannelError> {
        if let Some(Job::Write(writer)) = self.jobs.get_mut(&id)
            && let Err(refusal) = writer.push(id, data, channel)?
        {
            self.jobs.remove(&id);
            channel.send(id, &refusal.message());
        }
        Ok(())
    }

    /// The end of a write.
    pub fn finish(&mut self, id: u32, channel: &mut Channel) {
        if let Some(Job::Write(_)) = self.jobs.get(&id) {
            self.jobs.remove(&id);
            channel.send(id, &FromCell::Ok(Done {}));
        }
    }

    /// Give an operation up; END is its last frame. What was written or removed stays so.
    pub fn cancel(&mut self, id: u32, channel: &mut Channel) {
        if self.jobs.remove(&id).is_some() {
            channel.send(id, &FromCell::End(End {}));
        }
    }

    /// One step of each. True when there is more to do at once.
    pub fn step(
        &mut self,
        confinement: &Confinement,
        channel: &mut Channel,
        scratch: &mut [u8],
    ) -> bool {
        let mut more = false;
        self.jobs.retain(|id, job| {
            if !job.is_runnable(channel) {
                return true;
            }
            match job.step(*id, confinement, channel, scratch) {
                Ok(Progress::More) => {
                    more |= job.is_runnable(channel);
                    true
                }
                Ok(Progress::Done(last)) => {
                    channel.send(*id, &last);
                    false
                }
                Err(refusal) => {
                    channel.send(*id, &refusal.message());
                    false
                }
            }
        });
        more
    }
}

impl Job {
    fn is_runnable(&self, channel: &Channel) -> bool {
        match self {
            Self::Read(reader) => reader.is_runnable(channel),
            Self::Write(_) => false,
            Self::List(_) => !channel.is_congested(),
            Self::Remove(_) => true,
        }
    }

    fn step(
        &mut self,
        id: u32,
        confinement: &Confinement,
        channel: &mut Channel,
        scratch: &mut [u8],
    ) -> Result<Progress, Refusal> {
        match self {
            Self::Read(reader) => reader.step(id, channel, scratch),
            Self::Write(_) => Ok(Progress::More),
            Self::List(listing) => confinement.as_payload(|| listing.step(id, channel)),
            Self::Remove(removal) => confinement.as_payload(|| removal.step()),
        }
    }
}
