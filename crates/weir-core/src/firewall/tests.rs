//! What is judged accepted is accepted, packet by packet, by an interpreter that knows each packet; what people write is
//! judged as they mean it.

mod interpreter;
mod random;
mod written;

use super::{Path, Protocol};

fn any(v6: bool, protocol: Protocol) -> Path {
    Path { v6, protocol, input: None, output: None }
}
