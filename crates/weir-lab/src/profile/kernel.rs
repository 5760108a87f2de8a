//! Names of kernel functions, from /proc/kallsyms: modules and BPF programs included, inlined ones not.
//!
//! Promises: an address the kernel hides stays `[kernel]`, and whether it hides them is said.

use super::KERNEL;

pub const KALLSYMS: &str = "/proc/kallsyms";

/// Where an idle processor waits.
const IDLE_FUNCTIONS: [&str; 11] = [
    "default_idle",
    "default_idle_call",
    "pv_native_safe_halt",
    "native_safe_halt",
    "acpi_safe_halt",
    "acpi_idle_do_entry",
    "mwait_idle",
    "mwait_idle_with_hints.constprop.0",
    "intel_idle",
    "cpu_idle_poll",
    "poll_idle",
];

/// Where work of interrupts begins that runs in whatever process is there.
const SOFTIRQ_FUNCTIONS: [&str; 3] = ["handle_softirqs", "__do_softirq", "__softirqentry_text_start"];
/// The thread that starts all kernel threads.
pub const KTHREADD: u32 = 2;

#[derive(Default)]
pub struct Kernel {
    /// Symbols in the order of their addresses.
    symbols: Vec<(u64, String)>,
}

impl Kernel {
    /// Names as they are now: BPF programs come and go.
    pub fn read() -> Kernel {
        Kernel::parse(&std::fs::read_to_string(KALLSYMS).unwrap_or_default())
    }

    /// Lines of `address type name [module]`; every address is 0 when `kptr_restrict` hides them.
    fn parse(text: &str) -> Kernel {
        let symbol = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok().filter(|&a| a != 0)?;
            matches!(words.next()?, "t" | "T" | "w" | "W")
                .then(|| (address, words.next().map(str::to_string)))
        };
        let mut symbols: Vec<(u64, String)> =
            text.lines().filter_map(symbol).filter_map(|(a, name)| Some((a, name?))).collect();
        symbols.sort_by_key(|s| s.0);
        // of several names of one place the first is the common one
        symbols.dedup_by_key(|s| s.0);
        Kernel { symbols }
    }

    pub fn hidden(&self) -> Option<String> {
        self.symbols.is_empty().then(|| {
            "kernel functions have no names (/proc/kallsyms hides them): run as root, or sysctl kernel.kptr_restrict=0".into()
        })
    }

    pub fn function(&self, address: u64) -> String {
        let after = self.symbols.partition_point(|s| s.0 <= address);
        let name = after.checked_sub(1).map_or("[kernel]", |i| self.symbols[i].1.as_str());
        format!("{name}{KERNEL}")
    }

    pub fn is_softirq(function: &str) -> bool {
        SOFTIRQ_FUNCTIONS.contains(&super::function(function))
    }

    /// Whether an idle task at this function does nothing, rather than work of an interrupt.
    pub fn is_idle(function: &str) -> bool {
        IDLE_FUNCTIONS.contains(&super::function(function))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_symbol_before_it() {
        let kernel = Kernel::parse(
            "ffffffff81000100 T ip_rcv\nffffffff81000000 t start\nffffffff81000180 d data\n\
             ffffffffc0000000 t bpf_prog_6deef7357e7b4530_steer\t[bpf]\n",
        );
        assert_eq!(kernel.function(0xffff_ffff_8100_0104), "ip_rcv_[k]");
        assert_eq!(kernel.function(0xffff_ffff_8100_00ff), "start_[k]");
        assert_eq!(kernel.function(0xffff_ffff_c000_0010), "bpf_prog_6deef7357e7b4530_steer_[k]");
        assert_eq!(kernel.function(0xffff_ffff_0000_0000), "[kernel]_[k]");
        assert_eq!(kernel.hidden(), None);
    }

    #[test]
    fn hidden_addresses_are_said_and_given_no_names() {
        let kernel = Kernel::parse("0000000000000000 T ip_rcv\n0000000000000000 T start\n");
        assert!(kernel.hidden().is_some_and(|said| said.contains("kptr_restrict")));
        assert_eq!(kernel.function(0xffff_ffff_8100_0104), "[kernel]_[k]");
    }

    #[test]
    fn waiting_is_told_from_work_in_the_idle_task() {
        assert!(Kernel::is_idle("pv_native_safe_halt_[k]") && !Kernel::is_idle("napi_poll_[k]"));
    }
}
