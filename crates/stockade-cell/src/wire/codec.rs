//! Encoding of single values: little-endian integers, byte strings, lists, structs. A value has one encoding,
//! and a reader takes no other.

use std::fmt;

/// What was wrong with received bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProtocolError {
    /// Fewer bytes than the value needs.
    Truncated,
    /// Bytes after the last field.
    Trailing,
    /// A flag that is neither 0 nor 1.
    BadFlag,
    /// A text that is not UTF-8.
    NotUtf8,
    /// A list longer than the body that carries it, or a length over the limit.
    TooLong,
    /// A kind or op that is not in the table.
    Unknown(u8),
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => write!(f, "truncated"),
            Self::Trailing => write!(f, "trailing bytes"),
            Self::BadFlag => write!(f, "flag is not 0 or 1"),
            Self::NotUtf8 => write!(f, "text is not UTF-8"),
            Self::TooLong => write!(f, "length over the limit"),
            Self::Unknown(number) => write!(f, "unknown number {number}"),
        }
    }
}

/// Reads values from one received body.
#[derive(Debug)]
pub struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Start at the first byte.
    #[must_use]
    pub fn new(body: &'a [u8]) -> Self {
        Self { left: body }
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], ProtocolError> {
        let (head, tail) = self
            .left
            .split_at_checked(count)
            .ok_or(ProtocolError::Truncated)?;
        self.left = tail;
        Ok(head)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        self.take(N)?
            .try_into()
            .map_err(|_| ProtocolError::Truncated)
    }

    /// Error unless every byte was read.
    pub fn finish(self) -> Result<(), ProtocolError> {
        if self.left.is_empty() {
            Ok(())
        } else {
            Err(ProtocolError::Trailing)
        }
    }

    fn count(&mut self) -> Result<usize, ProtocolError> {
        let count = usize::try_from(u32::read(self)?).map_err(|_| ProtocolError::TooLong)?;
        // Each item takes at least one byte, so a hostile count allocates no more than its frame.
        if count > self.left.len() {
            return Err(ProtocolError::TooLong);
        }
        Ok(count)
    }
}

/// A value that crosses the wire.
pub trait Wire: Sized {
    /// Append the encoding.
    fn write(&self, out: &mut Vec<u8>);
    /// Read one value.
    fn read(reader: &mut Reader) -> Result<Self, ProtocolError>;
}

macro_rules! wire_integer {
    ($($type:ty),*) => {$(
        impl Wire for $type {
            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn read(reader: &mut Reader) -> Result<Self, ProtocolError> {
                Ok(Self::from_le_bytes(reader.array()?))
            }
        }
    )*};
}
wire_integer!(u8, u16, u32, u64, i32);

impl Wire for bool {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn read(reader: &mut Reader) -> Result<Self, ProtocolError> {
        match u8::read(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(ProtocolError::BadFlag),
        }
    }
}

/// A byte string (a path, an argument, output): any bytes, NUL included until a system call needs otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bytes(pub Vec<u8>);

impl Wire for Bytes {
    fn write(&self, out: &mut Vec<u8>) {
        write_bytes(out, &self.0);
    }
    fn read(reader: &mut Reader) -> Result<Self, ProtocolError> {
        let count = reader.count()?;
        Ok(Self(reader.take(count)?.to_vec()))
    }
}

impl Wire for String {
    fn write(&self, out: &mut Vec<u8>) {
        write_bytes(out, self.as_bytes());
    }
    fn read(reader: &mut Reader) -> Result<Self, ProtocolError> {
        String::from_utf8(Bytes::read(reader)?.0).map_err(|_| ProtocolError::NotUtf8)
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn write(&self, out: &mut Vec<u8>) {
        write_length(out, self.len());
        for item in self {
            item.write(out);
        }
    }
    fn read(reader: &mut Reader) -> Result<Self, ProtocolError> {
        let count = reader.count()?;
        (0..count).map(|_| T::read(reader)).collect()
    }
}

/// Append a length. Every sender keeps below 4 GiB (frames end at 1 MiB); more would be our own bug.
pub fn write_length(out: &mut Vec<u8>, length: usize) {
    u32::try_from(length).unwrap_or(u32::MAX).write(out);
}

/// Append a byte string without copying it into a `Bytes` first.
pub fn write_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    write_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Define a struct whose fields cross the wire in order, without names.
#[macro_export]
macro_rules! wire_struct {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident : $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type),* }
        impl $crate::wire::codec::Wire for $name {
            fn write(&self, out: &mut Vec<u8>) {
                $( $crate::wire::codec::Wire::write(&self.$field, out); )*
                let _ = out; // a struct may have no field
            }
            fn read(
                reader: &mut $crate::wire::codec::Reader,
            ) -> Result<Self, $crate::wire::codec::ProtocolError> {
                $( let $field = $crate::wire::codec::Wire::read(reader)?; )*
                let _ = reader;
                Ok(Self { $($field),* })
            }
        }
    };
}
