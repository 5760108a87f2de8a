//! What comes in by a TUN device of weir's enters the kernel's stack as if another device had received it.
//!
//! The program is `bpf/deliver.c` of `weir-xdp`, at the TUN device's ingress: it goes with that device, and so with the process.

use weir_xdp::{DELIVER, LoadError, Loaded, Settings};

use crate::bpf::attach::AttachError;
use crate::bpf::tc;
use crate::steer::SteerError;

/// Has everything that comes in by device `from` come in by device `to` instead.
pub fn attach(from: (&str, u32), to: u32) -> Result<(), SteerError> {
    let (name, index) = from;
    let program = load(to)?;
    let failed = |error| AttachError::Filter { interface: name.into(), error };
    Ok(tc::attach(index, program.name(), program.fd()?).map_err(failed)?)
}

fn load(to: u32) -> Result<Loaded, LoadError> {
    let to = to.to_ne_bytes();
    let constants: [(&str, &[u8]); 1] = [("deliver_to", &to)];
    DELIVER.load(Settings { constants: &constants, ..Settings::default() })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// `TC_ACT_REDIRECT`.
    const REDIRECT: u32 = 7;

    #[test]
    fn every_packet_is_redirected() {
        let program = match load(1) {
            Ok(program) => program,
            Err(error) if error.is_permission() => {
                let test = "deliver::every_packet_is_redirected";
                let _ = writeln!(std::io::stderr(), "SKIP {test}: bpf programs need root ({error})");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let run = program.run(&[0; 64], 1).expect("it runs");
        assert_eq!(run.verdict, REDIRECT);
    }
}
