//! A network interface by name: its index, whether it is up, and its receive-polling knobs.
//!
//! Promises: an interface that vanished, or came back as another one under its old name, is told
//! apart from one that is down; knobs that were turned are turned back when the last that wanted them so is dropped.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use weir_core::device::DeviceStatus;

use crate::cpu;

// linux/sockios.h
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// An interface in the namespace this thread was in when it was opened.
#[derive(Debug)]
pub struct Interface {
    name: String,
    index: u32,
    control: OwnedFd,
}

impl Interface {
    pub fn open(name: &str) -> io::Result<Interface> {
        // SAFETY: socket takes no pointers; the result is checked before it is owned.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor nobody else owns.
        let control = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut interface = Interface { name: name.into(), index: 0, control };
        let request = interface.ask(libc::SIOCGIFINDEX)?;
        // SAFETY: SIOCGIFINDEX filled this member of the union.
        interface.index = unsafe { request.ifr_ifru.ifru_ifindex } as u32;
        Ok(interface)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn index(&self) -> u32 {
        self.index
    }

    /// Largest IP packet, as the kernel has it now.
    pub fn mtu(&self) -> io::Result<u32> {
        let request = self.ask(libc::SIOCGIFMTU)?;
        // SAFETY: SIOCGIFMTU filled this member of the union.
        Ok(unsafe { request.ifr_ifru.ifru_mtu } as u32)
    }

    /// The address of the hardware on its bus; empty where there is none.
    fn bus(&self) -> io::Result<String> {
        self.driver_info(3)
    }

    /// The name of its driver.
    pub fn driver(&self) -> io::Result<String> {
        self.driver_info(0)
    }

    /// Receive and transmit queues it has now, where its driver tells (veth does).
    pub fn queues(&self) -> io::Result<(u32, u32)> {
        let [_, _, _, _, _, rx, tx, _, _] = self.channels()?;
        Ok((rx, tx))
    }

    /// `struct ethtool_channels`: the command, four maxima (receive, transmit, other, combined), then what is in use.
    fn channels(&self) -> io::Result<[u32; 9]> {
        const ETHTOOL_GCHANNELS: u32 = 0x3c;
        let mut channels = [0; 9];
        channels[0] = ETHTOOL_GCHANNELS;
        self.ethtool(&mut channels)?;
        Ok(channels)
    }

    /// How often its carrier came or went, where the kernel counts that; setting it down and up counts.
    pub fn carrier_changes(&self) -> Option<u64> {
        let path = format!("/sys/class/net/{}/carrier_changes", self.name);
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// A field of `struct ethtool_drvinfo` (ETHTOOL_GDRVINFO): the command, then driver, version, firmware and bus, of 32
    /// bytes each.
    fn driver_info(&self, field: usize) -> io::Result<String> {
        const FIELD: usize = 32;
        const LEN: usize = 196;
        const ETHTOOL_GDRVINFO: u32 = 3;
        let mut info = [0u32; LEN / 4];
        info[0] = ETHTOOL_GDRVINFO;
        self.ethtool(&mut info)?;
        let bytes: Vec<u8> = info.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let word = bytes.get(size_of::<u32>() + field * FIELD..).unwrap_or(&[]);
        let word = word.iter().take(FIELD).take_while(|byte| **byte != 0).copied().collect();
        Ok(String::from_utf8(word).unwrap_or_default())
    }

    /// A command of ethtool, its argument in the words behind it: as many as its structure has.
    pub(crate) fn ethtool<const WORDS: usize>(&self, argument: &mut [u32; WORDS]) -> io::Result<()> {
        assert!(known(argument[0]) == Some(WORDS), "the kernel would write past the argument");
        self.ethtool_of_any_length(argument)
    }

    /// A command of ethtool whose structure ends with as many entries as the device has: the caller asked how many before, and
    /// has room for more.
    pub(crate) fn ethtool_of_any_length(&self, argument: &mut [u32]) -> io::Result<()> {
        let mut ifreq = self.request()?;
        ifreq.ifr_ifru.ifru_data = argument.as_mut_ptr().cast();
        // SAFETY: the kernel reads the name, and reads and writes the structure of this command behind the pointer, which
        // outlives the call and is as long as the structure is.
        if unsafe { libc::ioctl(self.control.as_raw_fd(), SIOCETHTOOL, &mut ifreq) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    pub fn status(&self) -> DeviceStatus {
        let Ok(index) = self.ask(libc::SIOCGIFINDEX) else { return DeviceStatus::Gone };
        // SAFETY: SIOCGIFINDEX filled this member of the union.
        if unsafe { index.ifr_ifru.ifru_ifindex } as u32 != self.index {
            return DeviceStatus::Gone;
        }
        let Ok(flags) = self.ask(libc::SIOCGIFFLAGS) else { return DeviceStatus::Gone };
        // SAFETY: SIOCGIFFLAGS filled this member of the union.
        let flags = unsafe { flags.ifr_ifru.ifru_flags } as libc::c_int;
        let usable = libc::IFF_UP | libc::IFF_RUNNING;
        if flags & usable == usable { DeviceStatus::Up } else { DeviceStatus::Down }
    }

    /// A request about this interface, by its name.
    fn request(&self) -> io::Result<libc::ifreq> {
        // SAFETY: all zeros is a valid `ifreq`: integers, byte arrays and a null pointer.
        let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
        let bytes = self.name.as_bytes();
        if bytes.is_empty() || bytes.len() >= ifreq.ifr_name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, from) in ifreq.ifr_name.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        Ok(ifreq)
    }

    fn ask(&self, request: libc::Ioctl) -> io::Result<libc::ifreq> {
        let mut ifreq = self.request()?;
        // SAFETY: these requests read the name from and write one member of the `ifreq` they are given.
        if unsafe { libc::ioctl(self.control.as_raw_fd(), request, &mut ifreq) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(ifreq)
    }
}

/// Words of the structure of an ethtool command (linux/ethtool.h).
fn known(command: u32) -> Option<usize> {
    match command {
        // ETHTOOL_GRXCSUM, ETHTOOL_GTXCSUM, ETHTOOL_GTSO, ETHTOOL_GGSO, ETHTOOL_GFLAGS, ETHTOOL_GGRO, and what sets each: ethtool_value.
        0x14..=0x17 | 0x1e | 0x1f | 0x23..=0x26 | 0x2b | 0x2c => Some(2),
        // ETHTOOL_GDRVINFO: ethtool_drvinfo.
        0x03 => Some(49),
        // ETHTOOL_GCOALESCE, ETHTOOL_SCOALESCE: ethtool_coalesce.
        0x0e | 0x0f => Some(23),
        // ETHTOOL_GSTRINGS: ethtool_gstrings, with room for the names of 128 features.
        0x1b => Some(3 + 128 * 8),
        // ETHTOOL_GSSET_INFO: ethtool_sset_info, with one length.
        0x37 => Some(5),
        // ETHTOOL_GFEATURES: ethtool_gfeatures. ETHTOOL_SFEATURES: ethtool_sfeatures. Of 128 features each.
        0x3a => Some(2 + 4 * 4),
        0x3b => Some(2 + 4 * 2),
        // ETHTOOL_GRXFH, ETHTOOL_SRXFH, ETHTOOL_GRXCLSRLCNT: ethtool_rxnfc.
        0x29 | 0x2a | 0x2e => Some(48),
        // ETHTOOL_GRXFHINDIR: ethtool_rxfh_indir, with room for the largest table.
        0x38 => Some(2 + 4096),
        // ETHTOOL_GCHANNELS, ETHTOOL_SCHANNELS: ethtool_channels.
        0x3c | 0x3d => Some(9),
        _ => None,
    }
}

/// Whether hardware, real or emulated, may be behind this interface, so that its driver may come to offer zero-copy:
/// all but those that say they hang on no bus. One that does not answer may be anything.
pub fn may_be_a_card(name: &str) -> bool {
    Interface::open(name).and_then(|interface| interface.bus()).map_or(true, |bus| !bus.is_empty())
}

/// Counts the queues of an interface whose names begin so: `rx-` or `tx-`.
pub fn count_queues(name: &str, prefix: &str) -> Option<usize> {
    let names = std::fs::read_dir(format!("/sys/class/net/{name}/queues")).ok()?;
    Some(names.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)).count())
}

/// Why no frame may be redirected out of an interface though its driver offers that: of virtio-net with more queues than processors
/// and none left for XDP, the kernel takes a send queue behind the last one, and dies (Linux 6.12, `virtnet_xdp_get_sq`).
pub fn no_redirects(name: &str) -> Option<String> {
    const MOST: usize = 4;
    let interface = Interface::open(name).ok().filter(|i| i.driver().is_ok_and(|d| d == "virtio_net"))?;
    let most = interface.channels().ok()?[MOST] as usize;
    let processors = cpu::possible()?;
    let queues = count_queues(name, "tx-")?;
    redirects_crash(queues, most, processors).then(|| {
        format!(
            "the kernel would crash over a frame redirected to virtio-net with more queues ({queues}) than processors ({processors}) and none left for XDP; \
             `ethtool -L {name} combined {processors}` before the start"
        )
    })
}

/// Whether that is so with this many queues in use, at most, and processors.
fn redirects_crash(queues: usize, most: usize, processors: usize) -> bool {
    queues > processors && queues + processors > most
}

/// Interrupts of an interface held back, so that a polling worker is not interrupted or reception runs in batches, as long as one of
/// these is alive.
#[derive(Debug)]
pub struct HeldInterrupts {
    key: Key,
}

/// Polls that find nothing before interrupts are let through again.
const DEFER_POLLS: &str = "2";
/// How long the kernel waits for a worker's next poll before it polls itself. Longer than a breath, shorter than the 256 slots of a veth
/// ring last at 1 Mpps.
pub const POLLED_AT_LEAST: Duration = Duration::from_micros(200);
/// How long a frame waits at most where reception is to run in batches: with less the timer costs what it saves.
pub const MODERATED: Duration = Duration::from_micros(100);

/// A namespace (its inode) and the name of an interface in it.
type Key = (u64, String);

/// The knobs are an interface's, and several queues want them turned: what they were before the first, and how many
/// want them so.
struct Turned {
    key: Key,
    before: Vec<(PathBuf, String)>,
    wanted: usize,
}

static TURNED: Mutex<Vec<Turned>> = Mutex::new(Vec::new());

impl HeldInterrupts {
    /// After this long without a poll the kernel polls, unless another of these, made before, says otherwise for the same interface.
    /// Needs sysfs of the namespace the interface is in.
    pub fn hold(interface: &str, timeout: Duration) -> io::Result<HeldInterrupts> {
        HeldInterrupts::hold_in(Path::new("/sys/class/net"), interface, timeout)
    }

    /// The same with sysfs of network devices in this folder.
    pub fn hold_in(sysfs: &Path, interface: &str, timeout: Duration) -> io::Result<HeldInterrupts> {
        let key = (std::fs::metadata("/proc/thread-self/ns/net")?.ino(), interface.to_owned());
        let mut all = TURNED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turned) = all.iter_mut().find(|turned| turned.key == key) {
            turned.wanted += 1;
            return Ok(HeldInterrupts { key });
        }
        let mut before = Vec::new();
        let timeout = timeout.as_nanos().to_string();
        for (knob, value) in [("napi_defer_hard_irqs", DEFER_POLLS), ("gro_flush_timeout", &timeout)] {
            let path = sysfs.join(interface).join(knob);
            let turned = std::fs::read_to_string(&path).and_then(|was| {
                std::fs::write(&path, value)?;
                Ok(was)
            });
            match turned {
                Ok(was) => before.push((path, was)),
                Err(error) => {
                    turn_back(&before);
                    return Err(error);
                }
            }
        }
        all.push(Turned { key: key.clone(), before, wanted: 1 });
        Ok(HeldInterrupts { key })
    }
}

fn turn_back(before: &[(PathBuf, String)]) {
    for (path, value) in before {
        // The interface may be gone, and its knobs with it.
        let _ = std::fs::write(path, value.trim());
    }
}

impl Drop for HeldInterrupts {
    fn drop(&mut self) {
        let mut all = TURNED.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = all.iter().position(|turned| turned.key == self.key) else { return };
        all[at].wanted -= 1;
        if all[at].wanted == 0 {
            turn_back(&all.swap_remove(at).before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knobs_two_queues_turned_are_turned_back_by_the_last() {
        let sysfs = std::env::temp_dir().join(format!("weir-knobs-{}", std::process::id()));
        let folder = sysfs.join("two-queues");
        std::fs::create_dir_all(&folder).expect("a folder");
        let knob = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a knob");
        std::fs::write(folder.join("napi_defer_hard_irqs"), "0\n").expect("written");
        HeldInterrupts::hold_in(&sysfs, "two-queues", POLLED_AT_LEAST)
            .expect_err("one of two knobs is absent");
        assert_eq!(knob("napi_defer_hard_irqs"), "0", "turned back by the failure");
        std::fs::write(folder.join("gro_flush_timeout"), "7\n").expect("written");
        let first = HeldInterrupts::hold_in(&sysfs, "two-queues", POLLED_AT_LEAST).expect("held");
        let second = HeldInterrupts::hold_in(&sysfs, "two-queues", POLLED_AT_LEAST).expect("held");
        drop(first);
        assert_eq!((knob("napi_defer_hard_irqs"), knob("gro_flush_timeout")), ("2".into(), "200000".into()));
        drop(second);
        assert_eq!((knob("napi_defer_hard_irqs"), knob("gro_flush_timeout")), ("0".into(), "7".into()));
        std::fs::remove_dir_all(&sysfs).expect("removed");
    }

    #[test]
    fn virtio_net_takes_no_redirected_frame_where_the_kernel_would_look_behind_its_queues() {
        assert!(redirects_crash(4, 4, 2), "seen: two processors, four queues, none for XDP");
        assert!(redirects_crash(3, 4, 2), "processor 1 would take the fifth of four");
        assert!(!redirects_crash(2, 4, 2), "two for XDP");
        assert!(!redirects_crash(4, 8, 2), "two for XDP");
        assert!(!redirects_crash(4, 4, 4), "one for each processor, shared");
        assert!(!redirects_crash(1, 1, 2));
    }
}
