//! Offloads that ethtool knows by name only: features, a bit each, whose number the running kernel tells.
//!
//! ```text
//! ETHTOOL_GSSET_INFO  how many names ─┐
//! ETHTOOL_GSTRINGS    the names       ├─► the bit ─► ETHTOOL_GFEATURES: is it active? ETHTOOL_SFEATURES: set it
//! ```
//!
//! Promises: a device that does not know a feature has it off; one that cannot be changed is an error, not a wish.

use std::io;

use crate::interface::Interface;

// linux/ethtool.h
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETH_SS_FEATURES: u32 = 4;
const ETH_GSTRING_LEN: usize = 32;
/// Blocks of 32 features there is room for; kernels had two so far.
const BLOCKS: usize = 4;
/// `ethtool_sset_info` with the length of one set of names.
const SET_INFO_WORDS: usize = 5;
/// `ethtool_gstrings` with room for the names of all features.
const STRINGS_WORDS: usize = 3 + BLOCKS * 32 * ETH_GSTRING_LEN / 4;
/// `ethtool_gfeatures`: command and size, then four words a block (available, requested, active, never changed).
const GET_WORDS: usize = 2 + BLOCKS * 4;
/// `ethtool_sfeatures`: command and size, then two words a block (which are meant, which of them are asked for).
const SET_WORDS: usize = 2 + BLOCKS * 2;

/// Whether the feature of this name is active on a device.
pub(super) fn is_active(device: &str, name: &str) -> io::Result<bool> {
    let interface = Interface::open(device)?;
    let Some(bit) = bit_of(&interface, name)? else { return Ok(false) };
    let (block, mask) = (bit / 32, 1 << (bit % 32));
    Ok(features(&interface)?[2 + block * 4 + 2] & mask != 0)
}

/// Asks for the feature of this name, or asks that it be off.
pub(super) fn set(device: &str, name: &str, on: bool) -> io::Result<()> {
    let interface = Interface::open(device)?;
    let bit = bit_of(&interface, name)?.ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
    let (block, mask) = (bit / 32, 1 << (bit % 32));
    let mut request = [0; SET_WORDS];
    (request[0], request[1]) = (ETHTOOL_SFEATURES, features(&interface)?[1]);
    request[2 + block * 2] = mask;
    request[2 + block * 2 + 1] = if on { mask } else { 0 };
    interface.ethtool(&mut request)?;
    // The kernel takes a wish that it cannot grant, and answers with a number that says so.
    if (features(&interface)?[2 + block * 4 + 2] & mask != 0) == on {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }
}

fn features(interface: &Interface) -> io::Result<[u32; GET_WORDS]> {
    let mut request = [0; GET_WORDS];
    (request[0], request[1]) = (ETHTOOL_GFEATURES, BLOCKS as u32);
    interface.ethtool(&mut request)?;
    Ok(request)
}

/// The number of the feature's bit; `None` where the kernel has no such name.
fn bit_of(interface: &Interface, name: &str) -> io::Result<Option<usize>> {
    let mut info = [0; SET_INFO_WORDS];
    // The mask of sets is 64 bits wide; what comes back of it says which sets the length is of.
    info[0] = ETHTOOL_GSSET_INFO;
    info[2..4].copy_from_slice(&words_of(1 << ETH_SS_FEATURES));
    interface.ethtool(&mut info)?;
    let count = info[4] as usize;
    // The kernel writes all names, however much room it is told of.
    if count > BLOCKS * 32 {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("the kernel has {count} features, this program knows {} at most", BLOCKS * 32),
        ));
    }
    let mut strings = [0; STRINGS_WORDS];
    (strings[0], strings[1], strings[2]) = (ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count as u32);
    interface.ethtool(&mut strings)?;
    let names = strings[3..].chunks_exact(ETH_GSTRING_LEN / 4).take(count);
    Ok(names.map(text_of).position(|it| it == name.as_bytes()))
}

fn words_of(number: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = number.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

/// The bytes before the first zero.
fn text_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_found_by_name_and_one_that_is_fixed_cannot_be_set() {
        assert!(is_active("lo", "loopback").expect("lo is there"));
        set("lo", "loopback", false).expect_err("it is what lo is");
        assert!(is_active("lo", "loopback").expect("lo is there"));
        set("lo", "loopback", true).expect("it is so");
        assert!(!is_active("lo", "no-such-feature").expect("lo is there"));
        set("lo", "no-such-feature", true).expect_err("nobody has it");
        is_active("no-such", "loopback").expect_err("no device");
    }
}
