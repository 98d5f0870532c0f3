//! `stockade-cell`: the launcher on the host and the agent inside every sandbox.
//!
//! `stockade-cell launch` reads a LAUNCH frame on descriptor 3 (the control channel), watches the pidfd of its owner
//! on descriptor 4, builds the wall, and becomes the sandbox's PID 1. It takes no other input: no environment,
//! no configuration file. It is started by the `stockade` Python package, never by hand.

mod launch;
mod serve;
mod sys;
mod wire;

const USAGE: &str = "stockade-cell is started by the stockade Python package:\n  \
    stockade-cell launch     build a sandbox (plan on descriptor 3, owner's pidfd on 4)\n  \
    stockade-cell --version\n";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let code = match (arguments.next().as_deref(), arguments.next()) {
        (Some("launch"), None) => launch::run(),
        (Some("--version"), None) => {
            println!("stockade-cell {}", env!("CARGO_PKG_VERSION"));
            0
        }
        _ => {
            eprint!("{USAGE}");
            2
        }
    };
    std::process::exit(code);
}
