//! Frames between host and cell: pure, no I/O. The Python side is `src/stockade/wire`; `tests/wire` holds
//! golden frames that both read.

pub mod codec;
pub mod frame;
pub mod message;
pub mod plan;

#[cfg(test)]
mod golden;
