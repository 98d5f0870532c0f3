//! `stockade-cell`: the launcher on the host and the agent inside every sandbox.
//!
//! `stockade-cell launch` reads a LAUNCH frame on descriptor 3 (the control channel), watches the pidfd of its owner
//! on descriptor 4, builds the wall, and becomes the sandbox's PID 1. It takes no other input: no environment,
//! no configuration file. It is started by the `stockade` Python package, never by hand.

mod launch;
mod serve;
mod sys;
mod wire;

fn main() {}
