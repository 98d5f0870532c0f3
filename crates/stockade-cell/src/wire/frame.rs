//! `u32 length | u8 kind | u32 id | body`: cutting a byte stream into frames, and making them.

use crate::wire::codec::{ProtocolError, Reader, Wire, write_bytes, write_length};
use crate::wire::message::{FromCell, ToCell};

/// Bytes of kind and id, which `length` counts.
const AFTER_LENGTH: usize = 5;
/// Bytes before the body.
const HEADER: usize = 4 + AFTER_LENGTH;
/// Largest frame that a cell takes: a command line at the kernel's limit for one string (128 KiB) times eight.
pub const MAX_TO_CELL: usize = 1024 * 1024;

/// A frame's kind, id and body, not yet decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawFrame {
    /// The message's number.
    pub kind: u8,
    /// The operation that it belongs to.
    pub id: u32,
    /// The encoded fields.
    pub body: Vec<u8>,
}

/// Cuts received bytes into frames; a length over the limit is an error before anything is allocated for it.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
}

impl Decoder {
    /// Take received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete frame, if there is one.
    pub fn next_raw(&mut self) -> Result<Option<RawFrame>, ProtocolError> {
        let Some(header) = self.buffer.get(..HEADER) else {
            return Ok(None);
        };
        let mut reader = Reader::new(header);
        let length =
            usize::try_from(u32::read(&mut reader)?).map_err(|_| ProtocolError::TooLong)?;
        let kind = u8::read(&mut reader)?;
        let id = u32::read(&mut reader)?;
        if !(AFTER_LENGTH..=MAX_TO_CELL).contains(&length) {
            return Err(ProtocolError::TooLong);
        }
        let end = 4 + length;
        let Some(body) = self.buffer.get(HEADER..end) else {
            return Ok(None);
        };
        let body = body.to_vec();
        self.buffer.drain(..end);
        Ok(Some(RawFrame { kind, id, body }))
    }

    /// The next complete message from the host.
    pub fn next_message(&mut self) -> Result<Option<(u32, ToCell)>, ProtocolError> {
        match self.next_raw()? {
            None => Ok(None),
            Some(raw) => Ok(Some((raw.id, ToCell::read(raw.kind, &raw.body)?))),
        }
    }

    /// True when the launcher read exactly the frames that it was sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

/// Append the frame of `message` to `out`.
pub fn encode(out: &mut Vec<u8>, id: u32, message: &FromCell) {
    let start = out.len();
    write_length(out, 0);
    message.kind().write(out);
    id.write(out);
    message.write(out);
    patch_length(out, start);
}

/// Append an OUTPUT (stream 1, 2) or DATA frame without copying `data` twice.
pub fn encode_output(out: &mut Vec<u8>, id: u32, stream: u8, data: &[u8]) {
    const OUTPUT: u8 = 145;
    write_length(out, AFTER_LENGTH + 1 + 4 + data.len());
    OUTPUT.write(out);
    id.write(out);
    stream.write(out);
    write_bytes(out, data);
}

fn patch_length(out: &mut [u8], start: usize) {
    let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    if let Some(field) = out.get_mut(start..start + 4) {
        field.copy_from_slice(&length.to_le_bytes());
    }
}
