//! ESP on hosts: which tables `ipsec` a weir there can follow, and which frames fit once they are sealed.
//!
//! Promises: what passes here is sealed or opened packet by packet, none is cut. Refuses: what only the pipeline in memory has
//! (rule sets, churn, a third port, a choice of vector code).

use super::invalid::IpsecError;
use super::ipsec::{Backend, Direction, HOSTS_MTU, Mode, Protection};
use super::{Family, FrameSize, Workload};

/// Ethernet's header and the FCS, which sizes of frames count.
const AROUND: usize = 14 + 4;
/// The smallest and the largest frame of a workload.
const FRAMES: (u16, u16) = (64, 1518);

/// Whether weir on a host can do what a table says that is not about policies alone.
pub fn check(p: &Protection, workload: &Workload) -> Result<(), IpsecError> {
    let only_in_memory = [
        ("rules", p.spd.rules.is_some()),
        ("churn", p.spd.churn > 0),
        ("backend = \"vaes\"", p.backend == Backend::Vaes),
        ("backend = \"vaes-256\"", p.backend == Backend::Vaes256),
        ("backend = \"aes-ni\"", p.backend == Backend::AesNi),
    ];
    if let Some((key, _)) = only_in_memory.into_iter().find(|(_, named)| *named) {
        return Err(IpsecError::OfMemory { key });
    }
    if p.direction == Direction::Beside && p.mode == Mode::Policy {
        return Err(IpsecError::NoThirdPort);
    }
    if p.direction == Direction::In && p.esn && p.replay_window == 0 {
        return Err(IpsecError::EsnWithoutWindow);
    }
    let frame = match workload.frame {
        FrameSize::Fixed(frame) => frame,
        FrameSize::Imix => FRAMES.1,
    };
    let sealed = sealed_len(p, frame);
    if p.direction != Direction::Beside && sealed > HOSTS_MTU {
        let most = (FRAMES.0..frame).rev().find(|&less| sealed_len(p, less) <= HOSTS_MTU).unwrap_or(0);
        return Err(IpsecError::SealedTooLong { frame, sealed, most });
    }
    Ok(())
}

/// Bytes of the IP packet that a frame becomes.
fn sealed_len(p: &Protection, frame: u16) -> usize {
    let inner = usize::from(frame).saturating_sub(AROUND);
    let outer = if p.outer == Family::Inet { 20 } else { 40 };
    outer + inner + p.cipher.0.overhead(inner)
}
