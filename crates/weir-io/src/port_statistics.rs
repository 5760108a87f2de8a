//! A device driver's own counters, as `ethtool -S` prints them.

use std::io;

use crate::interface::Interface;

// linux/ethtool.h
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETH_SS_STATS: u32 = 1;
/// `ETH_GSTRING_LEN`: a name, padded with zeros.
const NAME_LEN: usize = 32;
/// A driver that claims more counters than this is not asked: 4,096 × 40 B is 160 KiB.
const COUNTERS_MAX: u32 = 4096;

/// Names and values, in the driver's order. A device without counters has none.
pub fn read(device: &str) -> io::Result<Vec<(String, u64)>> {
    let interface = Interface::open(device)?;
    // struct ethtool_sset_info: cmd, reserved, u64 mask, data[1].
    let mut info = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_STATS, 0, 0];
    match interface.ethtool(&mut info) {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
        other => other?,
    }
    let count = if info[2] == 0 { 0 } else { info[4] };
    if count == 0 || count > COUNTERS_MAX {
        return Ok(Vec::new());
    }
    // struct ethtool_gstrings: cmd, string_set, len, data[len × 32]. One counter of slack: the set may grow
    // between two calls, and the kernel writes what it has.
    let room = count as usize;
    let mut names = vec![0u32; 3 + (room + 1) * NAME_LEN / 4];
    names[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_STATS, count]);
    interface.ethtool_of_any_length(&mut names)?;
    // struct ethtool_stats: cmd, n_stats, u64 data[n].
    let mut values = vec![0u32; 2 + (room + 1) * 2];
    values[..2].copy_from_slice(&[ETHTOOL_GSTATS, count]);
    interface.ethtool_of_any_length(&mut values)?;
    let names = names[3..].chunks_exact(NAME_LEN / 4).map(name);
    let values = values[2..].chunks_exact(2).map(|v| {
        u64::from_ne_bytes([v[0].to_ne_bytes(), v[1].to_ne_bytes()].concat().try_into().unwrap_or([0; 8]))
    });
    Ok(names.zip(values).take(room).collect())
}

fn name(words: &[u32]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).take_while(|&b| b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_device_without_counters_has_none() {
        assert_eq!(super::read("lo").expect("lo exists"), []);
    }

    #[test]
    fn a_device_that_is_not_there_is_an_error() {
        assert!(super::read("nosuchdevice0").is_err());
    }
}
