//! How long a card holds its sending interrupts back (`ethtool -c`, `tx-usecs`): read, set to nothing on ports we own, put
//! back afterwards.
//!
//! Holding them back saves interrupts where they only tell of buffers to free. A zero-copy AF_XDP socket sends in such an
//! interrupt: its driver is woken by one, and what the card holds back is time that every packet waits.

use std::io;

use crate::interface::Interface;

// linux/ethtool.h
const ETHTOOL_GCOALESCE: u32 = 0x0e;
const ETHTOOL_SCOALESCE: u32 = 0x0f;
/// `struct ethtool_coalesce`: 23 words, of which the command is the first.
const WORDS: usize = 23;
const TX_USECS: usize = 5;

/// A device whose `tx-usecs` is 0 while this is alive.
#[derive(Debug)]
pub struct SentAtOnce {
    interface: Interface,
    before: u32,
}

impl SentAtOnce {
    /// `None` where it is 0 already, or where the driver has no such setting.
    pub fn on(device: &str) -> io::Result<Option<SentAtOnce>> {
        let interface = Interface::open(device)?;
        let mut setting = match read(&interface) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(None),
            other => other?,
        };
        let before = std::mem::take(&mut setting[TX_USECS]);
        if before == 0 {
            return Ok(None);
        }
        write(&interface, setting)?;
        Ok(Some(SentAtOnce { interface, before }))
    }

    /// Microseconds it was.
    pub fn before(&self) -> u32 {
        self.before
    }
}

impl Drop for SentAtOnce {
    fn drop(&mut self) {
        // The device may be gone by now, and then so is the setting. Another value is somebody else's wish.
        if let Ok(mut setting) = read(&self.interface)
            && setting[TX_USECS] == 0
        {
            setting[TX_USECS] = self.before;
            let _ = write(&self.interface, setting);
        }
    }
}

fn read(interface: &Interface) -> io::Result<[u32; WORDS]> {
    let mut setting = [0; WORDS];
    setting[0] = ETHTOOL_GCOALESCE;
    interface.ethtool(&mut setting)?;
    Ok(setting)
}

fn write(interface: &Interface, mut setting: [u32; WORDS]) -> io::Result<()> {
    setting[0] = ETHTOOL_SCOALESCE;
    interface.ethtool(&mut setting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_the_setting_is_left_as_it_is() {
        assert!(SentAtOnce::on("lo").expect("there").is_none());
        SentAtOnce::on("no-such").expect_err("no device");
    }
}
