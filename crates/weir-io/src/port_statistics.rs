//! A device driver's own counters, as `ethtool -S` prints them.

use std::ffi::c_char;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

// linux/ethtool.h
const SIOCETHTOOL: libc::c_ulong = 0x8946;
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
    let socket = socket()?;
    // struct ethtool_sset_info: cmd, reserved, u64 mask, data[1].
    let mut info = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_STATS, 0, 0];
    match ethtool(&socket, device, &mut info) {
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
    ethtool(&socket, device, &mut names)?;
    // struct ethtool_stats: cmd, n_stats, u64 data[n].
    let mut values = vec![0u32; 2 + (room + 1) * 2];
    values[..2].copy_from_slice(&[ETHTOOL_GSTATS, count]);
    ethtool(&socket, device, &mut values)?;
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

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: socket() takes no memory; its result is checked before it is owned.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `socket` is a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// `argument` must be as long as the command says in it; every caller above sizes it so.
fn ethtool(socket: &OwnedFd, device: &str, argument: &mut [u32]) -> io::Result<()> {
    if device.len() >= libc::IFNAMSIZ {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("device name `{device}` is too long"),
        ));
    }
    // SAFETY: ifreq is plain data for which all zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, &from) in request.ifr_name.iter_mut().zip(device.as_bytes()) {
        *to = from as c_char;
    }
    request.ifr_ifru.ifru_data = argument.as_mut_ptr().cast();
    // SAFETY: the kernel reads `request` and reads and writes the buffer behind it, both of which outlive
    // the call; the buffer holds the count the command announces (with one entry to spare), and the kernel
    // refuses or truncates what differs from it.
    if unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
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
