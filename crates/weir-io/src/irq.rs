//! Which CPU takes the interrupts of a card's queues: read, set on ports we own, put back afterwards.
//!
//! ```text
//! /sys/class/net/eth0/device/msi_irqs/41          an interrupt of the card
//! /sys/kernel/irq/41/actions: eth0-TxRx-3         is that of queue 3
//! /proc/irq/41/smp_affinity_list: 0-7  ─►  5      is taken by the CPU of the queue's worker from now on
//! ```
//!
//! A queue is known by the number its interrupt's name ends in, as drivers of network cards have it. Refuses: to touch
//! interrupts without a queue, such as those for changes of the link.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// A device whose queues' interrupts go where they were placed while this is alive.
#[derive(Debug, Default)]
pub struct PlacedIrqs {
    moved: Vec<Moved>,
    refused: Vec<(u32, io::Error)>,
    already: usize,
}

#[derive(Debug)]
struct Moved {
    affinity: PathBuf,
    before: String,
    /// As the kernel writes what was set.
    now: String,
}

impl PlacedIrqs {
    /// Has the CPU that `cpu` names for a queue take its interrupts.
    pub fn on(device: &str, cpu: impl Fn(usize) -> u32) -> io::Result<PlacedIrqs> {
        PlacedIrqs::below(Path::new("/"), device, cpu)
    }

    fn below(root: &Path, device: &str, cpu: impl Fn(usize) -> u32) -> io::Result<PlacedIrqs> {
        let mut placed = PlacedIrqs::default();
        for (irq, queue) in queues(root, device)? {
            match place(root, irq, cpu(queue)) {
                Ok(Some(moved)) => placed.moved.push(moved),
                Ok(None) => placed.already += 1,
                Err(error) => placed.refused.push((irq, error)),
            }
        }
        Ok(placed)
    }

    /// Interrupts that had other CPUs.
    pub fn moved(&self) -> usize {
        self.moved.len()
    }

    /// Interrupts that have a queue, wherever they go.
    pub fn found(&self) -> usize {
        self.moved.len() + self.refused.len() + self.already
    }

    /// Interrupts that the kernel keeps where they are, with its reason.
    pub fn refused(&self) -> &[(u32, io::Error)] {
        &self.refused
    }
}

impl Drop for PlacedIrqs {
    fn drop(&mut self) {
        for Moved { affinity, before, now } in &self.moved {
            // The device may be gone by now. Other CPUs are somebody else's wish, or the driver's, which asked for new interrupts.
            if read(affinity).is_ok_and(|cpus| cpus == *now) {
                let _ = fs::write(affinity, before);
            }
        }
    }
}

/// `None` where it goes there already.
fn place(root: &Path, irq: u32, cpu: u32) -> io::Result<Option<Moved>> {
    let affinity = root.join(format!("proc/irq/{irq}/smp_affinity_list"));
    let (before, wanted) = (read(&affinity)?, cpu.to_string());
    if before == wanted {
        return Ok(None);
    }
    fs::write(&affinity, &wanted)?;
    let now = read(&affinity)?;
    Ok(Some(Moved { affinity, before, now }))
}

fn read(file: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(file)?.trim().to_owned())
}

/// The interrupts of queues, in order of their numbers; none for a device that no card is behind.
fn queues(root: &Path, device: &str) -> io::Result<Vec<(u32, usize)>> {
    let link = root.join("sys/class/net").join(device);
    link.symlink_metadata()?;
    let Ok(card) = link.join("device").canonicalize() else { return Ok(Vec::new()) };
    // The device of virtio is below that of the bus.
    let folders = [Some(card.as_path()), card.parent()];
    let Some(irqs) = folders.into_iter().flatten().find_map(|card| fs::read_dir(card.join("msi_irqs")).ok())
    else {
        return Ok(Vec::new());
    };
    let mut irqs: Vec<u32> =
        irqs.flatten().filter_map(|irq| irq.file_name().to_str()?.parse().ok()).collect();
    irqs.sort_unstable();
    let name = |irq| read(&root.join(format!("sys/kernel/irq/{irq}/actions"))).ok();
    if let [only] = irqs[..] {
        return Ok(name(only).map(|_| (only, 0)).into_iter().collect());
    }
    // A device called `lan-1` has one of that name for its link.
    let named = |irq| name(irq).filter(|name| name != device);
    Ok(irqs.into_iter().filter_map(|irq| Some((irq, queue(&named(irq)?)?))).collect())
}

/// The queue in the name of an interrupt: `eth0-TxRx-3`, `virtio0-input.3`, `mlx5_comp3@pci:0000:01:00.0`. vmxnet3 numbers that of
/// its link too: `eth0-event-4`.
fn queue(name: &str) -> Option<usize> {
    let name = name.split('@').next()?;
    let before = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let named = (before.ends_with(['-', '.']) || before.ends_with("comp")) && !before.ends_with("-event-");
    name[before.len()..].parse().ok().filter(|_| named)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_queue_is_known_by_the_name_of_its_interrupt() {
        for (name, expected) in [
            ("eth0-TxRx-3", Some(3)),
            ("virtio0-input.0", Some(0)),
            ("virtio1-output.12", Some(12)),
            ("i40e-eth0-TxRx-1", Some(1)),
            ("mlx5_comp7@pci:0000:01:00.0", Some(7)),
            ("eth0-rx-0", Some(0)),
            ("ena-mgmnt@pci:0000:00:05.0", None),
            ("mlx5_async0@pci:0000:01:00.0", None),
            ("virtio0-config", None),
            ("eth0-rxtx-0", Some(0)),
            ("eth0-event-1", None),
            ("eth0", None),
            ("", None),
            ("-99999999999999999999999", None),
        ] {
            assert_eq!(queue(name), expected, "{name}");
        }
    }

    /// A machine with a card behind `eth0`, below a folder.
    struct Machine(PathBuf);

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    impl Machine {
        fn new(card: &str, irqs: &[(u32, &str)]) -> Machine {
            static MADE: AtomicU32 = AtomicU32::new(0);
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let name = format!("weir-io-irq-{}-{number}", std::process::id());
            let machine = Machine(std::env::temp_dir().join(name));
            let card = machine.path(&format!("sys/devices/{card}"));
            fs::create_dir_all(&card).expect("a folder");
            let link = machine.path("sys/class/net/eth0");
            fs::create_dir_all(&link).expect("a folder");
            symlink(&card, link.join("device")).expect("a link");
            for (irq, name) in irqs {
                machine.write(&format!("sys/devices/pci/msi_irqs/{irq}"), "msi");
                machine.write(&format!("sys/kernel/irq/{irq}/actions"), name);
                machine.write(&format!("proc/irq/{irq}/smp_affinity_list"), "0-3\n");
            }
            machine
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.join(path)
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.path(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }

        fn cpus(&self, irq: u32) -> String {
            read(&self.path(&format!("proc/irq/{irq}/smp_affinity_list"))).expect("a file")
        }
    }

    const VIRTIO: [(u32, &str); 5] = [
        (24, "virtio0-config"),
        (25, "virtio0-input.0"),
        (26, "virtio0-output.0"),
        (27, "virtio0-input.1"),
        (28, "virtio0-output.1"),
    ];

    #[test]
    fn interrupts_of_queues_are_placed_and_put_back() {
        let machine = Machine::new("pci/virtio0", &VIRTIO);
        let placed = PlacedIrqs::below(&machine.0, "eth0", |queue| queue as u32 + 2).expect("a device");
        assert_eq!((placed.found(), placed.moved()), (4, 4));
        let all = || [24, 25, 26, 27, 28].map(|irq| machine.cpus(irq));
        assert_eq!(all(), ["0-3", "2", "2", "3", "3"]);
        drop(placed);
        assert_eq!(all(), ["0-3"; 5]);
    }

    #[test]
    fn what_somebody_else_set_meanwhile_stays() {
        let machine = Machine::new("pci", &[(30, "eth0-TxRx-0"), (31, "eth0-TxRx-1"), (32, "eth0")]);
        machine.write("proc/irq/31/smp_affinity_list", "1\n");
        let placed = PlacedIrqs::below(&machine.0, "eth0", |_| 1).expect("a device");
        assert_eq!((placed.found(), placed.moved()), (2, 1));
        machine.write("proc/irq/30/smp_affinity_list", "3\n");
        drop(placed);
        assert_eq!([30, 31, 32].map(|irq| machine.cpus(irq)), ["3", "1", "0-3"]);
    }

    #[test]
    fn the_only_interrupt_of_a_card_is_that_of_its_queue() {
        let machine = Machine::new("pci", &[(30, "eth0")]);
        let placed = PlacedIrqs::below(&machine.0, "eth0", |_| 1).expect("a device");
        assert_eq!((placed.moved(), machine.cpus(30).as_str()), (1, "1"));
    }

    #[test]
    fn a_device_whose_own_name_ends_in_a_number_keeps_the_interrupt_of_its_link() {
        let machine = Machine::new("pci", &[(30, "lan-1-TxRx-0"), (31, "lan-1")]);
        let sys = machine.path("sys/class/net");
        fs::rename(sys.join("eth0"), sys.join("lan-1")).expect("there");
        let placed = PlacedIrqs::below(&machine.0, "lan-1", |_| 1).expect("a device");
        assert_eq!((placed.found(), machine.cpus(31).as_str()), (1, "0-3"));
    }

    #[test]
    fn what_the_kernel_refuses_is_told() {
        let machine = Machine::new("pci", &[(30, "eth0-TxRx-0"), (31, "eth0-TxRx-1")]);
        fs::remove_file(machine.path("proc/irq/30/smp_affinity_list")).expect("there");
        let placed = PlacedIrqs::below(&machine.0, "eth0", |_| 1).expect("a device");
        assert_eq!((placed.found(), placed.moved()), (2, 1));
        assert!(matches!(placed.refused(), [(30, error)] if error.kind() == io::ErrorKind::NotFound));
    }

    #[test]
    fn a_device_without_a_card_has_none() {
        assert_eq!(PlacedIrqs::on("lo", |_| 0).expect("there").found(), 0);
        PlacedIrqs::on("no-such", |_| 0).expect_err("no device");
    }
}
