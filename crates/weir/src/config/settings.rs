//! `[workers]`, `[control]` and `[limits]`: everything with a default.

use std::net::SocketAddr;
use std::path::PathBuf;

use toml::de::DeValue;
use weir_core::tables::Settings;

use super::read::{Fields, Value};
use super::source::Complaints;
use super::table::{Form, Key, Table, names};

/// `[workers]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workers {
    /// Empty means one worker for each physical core this process may use.
    pub cpus: Vec<u32>,
    /// Buffers of each worker; by default enough for every ring.
    pub buffers: Option<u32>,
    pub wake_up: WakeUp,
    pub zero_copy: ZeroCopy,
    pub xdp: Xdp,
    /// XDP forwards no flow by itself: workers see every frame.
    pub flow_offload_off: bool,
    /// Large batches of copied frames leave without socket buffers where the far end takes that.
    pub live_transmit: bool,
    /// The CPU of a queue's worker takes the queue's interrupts, too.
    pub place_irqs: bool,
    /// Workers keep the priority weir was started with.
    pub leave_nice: bool,
    /// Receive interrupts of virtual cables stay as they are, however many frames there are.
    pub moderation_off: bool,
}

/// How a worker without frames learns of the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WakeUp {
    /// It looks for a while, or once where the kernel needs its CPU to bring frames, then sleeps.
    #[default]
    Auto,
    /// It looks again and again and has its CPU to itself.
    BusyPoll,
    /// It sleeps as soon as there is nothing, and the interface wakes it.
    Interrupt,
}

/// Whether cards read and write the buffers of workers themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Where the driver offers it, else the kernel copies.
    #[default]
    Auto,
    /// The kernel copies.
    Off,
    /// A device that refuses it is not opened.
    Require,
}

/// Where the XDP program of a device runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Xdp {
    /// It runs in the driver where that takes programs, else behind it.
    #[default]
    Auto,
    /// It runs in the driver, or the device is not opened.
    Native,
    /// It runs behind the driver, on frames in socket buffers.
    Generic,
}

impl Workers {
    /// Whether a device that is not as asked for stays closed, instead of being opened in a slower way.
    pub fn insist(&self) -> bool {
        self.zero_copy == ZeroCopy::Require || self.xdp == Xdp::Native
    }
}

const WAKE_UP: &[(&str, WakeUp)] =
    &[("auto", WakeUp::Auto), ("busy-poll", WakeUp::BusyPoll), ("interrupt", WakeUp::Interrupt)];
const ZERO_COPY: &[(&str, ZeroCopy)] =
    &[("auto", ZeroCopy::Auto), ("off", ZeroCopy::Off), ("require", ZeroCopy::Require)];
const XDP: &[(&str, Xdp)] = &[("auto", Xdp::Auto), ("native", Xdp::Native), ("generic", Xdp::Generic)];
const FLOW_OFFLOAD_OFF: &[(&str, bool)] = &[("auto", false), ("off", true)];
const LIVE_TRANSMIT: &[(&str, bool)] = &[("auto", true), ("off", false)];
const PLACE_IRQS: &[(&str, bool)] = &[("auto", true), ("leave", false)];
const LEAVE_NICE: &[(&str, bool)] = &[("auto", false), ("leave", true)];
const MODERATION_OFF: &[(&str, bool)] = &[("auto", false), ("off", true)];
/// What becomes of IPv6 transit with broken extension headers or a type 0 routing header; whether they are looked at.
const EXTENSIONS: &[(&str, bool)] = &[("forward", false), ("check", true)];

/// `[control]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Control {
    pub socket: Option<PathBuf>,
    /// A TCP address for `/metrics`, besides the socket.
    pub metrics: Option<SocketAddr>,
}

/// CPUs the kernel can number (`CONFIG_NR_CPUS` tops out at 8,192).
const CPU_MAX: u32 = 8191;
/// Workers, each with its own memory and thread.
const WORKERS_MAX: usize = 64;
/// Buffers of 2 KiB: from 2 MiB, enough for one ring pair, to 2 GiB a worker.
const BUFFERS: std::ops::RangeInclusive<u32> = 1024..=1_048_576;
/// ICMP errors a second: 0 switches them off.
const ICMP_MAX: u32 = 1_000_000;

const WORKERS: [Key; 10] = [
    Key::with_default(
        "cpus",
        Form::OneOf(&[Form::Words(&["auto"]), Form::List(&Form::Integer(0, CPU_MAX as u64))]),
        "\"auto\"",
        "The CPUs that workers own, one worker each. `auto` takes one of each physical core. There are never more workers than the least receive queues of a device.",
    ),
    Key::new(
        "buffers",
        Form::Integer(*BUFFERS.start() as u64, *BUFFERS.end() as u64),
        "The buffers of each worker, of 2 KiB (4 KiB with MTUs above 1774). Without it, enough for every ring.",
    ),
    Key::with_default(
        "wake_up",
        Form::Words(&["auto", "busy-poll", "interrupt"]),
        "\"auto\"",
        "How a worker without packets learns of the next. `busy-poll` never sleeps; `interrupt` sleeps as soon as nothing is there.",
    ),
    Key::with_default(
        "zero_copy",
        Form::Words(&["auto", "off", "require"]),
        "\"auto\"",
        "Whether cards read and write the buffers of workers themselves. `off` has the kernel copy; with `require` a device that refuses zero-copy is not opened.",
    ),
    Key::with_default(
        "xdp",
        Form::Words(&["auto", "native", "generic"]),
        "\"auto\"",
        "Where the XDP program of a device runs: in its driver (`native`; a device whose driver cannot is not opened) or behind it (`generic`: slower, no zero-copy, and no card is reset). `auto` takes the driver where it can.",
    ),
    Key::with_default(
        "flow_offload",
        Form::Words(&["auto", "off"]),
        "\"auto\"",
        "Whether an XDP program forwards flows that a worker has decided on before.",
    ),
    Key::with_default(
        "live_transmit",
        Form::Words(&["auto", "off"]),
        "\"off\"",
        "Whether large batches leave without socket buffers where the far end takes that (veth). Measure before you use it.",
    ),
    Key::with_default(
        "irq",
        Form::Words(&["auto", "leave"]),
        "\"leave\"",
        "Which CPUs take the interrupts of a card's queues. With `auto` it is the CPU of a queue's worker, until the port closes; `leave` leaves them where they are.",
    ),
    Key::with_default(
        "nice",
        Form::Words(&["auto", "leave"]),
        "\"auto\"",
        "The priority of workers. With `auto` a worker has nice -10, and the session it leads too, where the kernel's reception shares its CPU (frames copied by the kernel, no busy polling), so that an overload of frames does not keep it from those that were received; `leave` leaves it as weir was started.",
    ),
    Key::with_default(
        "moderation",
        Form::Words(&["auto", "off"]),
        "\"auto\"",
        "Whether receive interrupts of a virtual cable (veth) with several queues, whose reception runs in threads, are held back for 0.1 ms where each queue receives more than 50,000 frames a second and a CPU of the machine has no time left, so that reception runs in batches. A card moderates its own (`ethtool -C`).",
    ),
];
const CONTROL: [Key; 2] = [
    Key::with_default(
        "socket",
        Form::Text,
        "\"/run/weir/NAME.sock\"",
        "The control socket: an absolute path of at most 107 bytes.",
    ),
    Key::new(
        "metrics",
        Form::Text,
        "An address and port to serve Prometheus on, `127.0.0.1:9650`. Without it `/metrics` is on the control socket only.",
    ),
];
const LIMITS: [Key; 5] = [
    Key::with_default(
        "icmp_errors_per_second",
        Form::Integer(0, ICMP_MAX as u64),
        "1000",
        "ICMP errors a second that a worker sends at most. 0 switches them off.",
    ),
    Key::with_default(
        "icmp_error_burst",
        Form::Integer(0, ICMP_MAX as u64),
        "50",
        "ICMP errors that a worker may send at once.",
    ),
    Key::with_default(
        "hold_per_neighbor",
        Form::Integer(0, u16::MAX as u64),
        "6",
        "Packets kept for each next hop while it is being resolved. At most `hold_total`.",
    ),
    Key::with_default(
        "hold_total",
        Form::Integer(0, u16::MAX as u64),
        "1024",
        "Packets kept by a worker for all unresolved next hops together.",
    ),
    Key::with_default(
        "ipv6_extensions",
        Form::Words(&["forward", "check"]),
        "\"forward\"",
        "`check` drops IPv6 transit with broken extension headers or a type 0 routing header.",
    ),
];

pub const WORKERS_TABLE: Table = Table {
    heading: "[workers]",
    about: "Threads that forward packets, or serve a relay's clients.",
    keys: &WORKERS,
};
pub const CONTROL_TABLE: Table =
    Table { heading: "[control]", about: "How a running weir is asked.", keys: &CONTROL };
pub const LIMITS_TABLE: Table =
    Table { heading: "[limits]", about: "What a worker of a router sends and keeps at most.", keys: &LIMITS };

pub fn workers(value: &Value<'_>, complaints: &mut Complaints) -> Option<Workers> {
    let fields = value.table(&names(&WORKERS), "[workers]", complaints)?;
    let cpus = fields.get("cpus").map(|v| cpus(&v, complaints)).unwrap_or_default();
    let buffers = fields.get("buffers").and_then(|v| v.integer(BUFFERS, 8192, complaints));
    let wake_up = fields.get("wake_up").and_then(|v| v.word(WAKE_UP, complaints)).unwrap_or_default();
    let zero_copy = fields.get("zero_copy").and_then(|v| v.word(ZERO_COPY, complaints)).unwrap_or_default();
    let xdp = fields.get("xdp").and_then(|v| v.word(XDP, complaints)).unwrap_or_default();
    if (zero_copy, xdp) == (ZeroCopy::Require, Xdp::Generic)
        && let Some(value) = fields.get("xdp")
    {
        complaints.add(
            value.span.clone(),
            "workers: xdp: generic XDP has no zero-copy, which `zero_copy = \"require\"` asks for; remove one of them",
        );
    }
    let mut word = |key, words| fields.get(key).and_then(|v| v.word(words, complaints)).unwrap_or_default();
    let flow_offload_off = word("flow_offload", FLOW_OFFLOAD_OFF);
    let live_transmit = word("live_transmit", LIVE_TRANSMIT);
    let place_irqs = word("irq", PLACE_IRQS);
    let leave_nice = word("nice", LEAVE_NICE);
    let moderation_off = word("moderation", MODERATION_OFF);
    Some(Workers {
        cpus,
        buffers,
        wake_up,
        zero_copy,
        xdp,
        flow_offload_off,
        live_transmit,
        place_irqs,
        leave_nice,
        moderation_off,
    })
}

fn cpus(value: &Value<'_>, complaints: &mut Complaints) -> Vec<u32> {
    let mut cpus = Vec::new();
    match value.value {
        DeValue::String(s) if s == "auto" => return cpus,
        DeValue::Array(items) if !items.is_empty() && items.len() <= WORKERS_MAX => {}
        _ => {
            value.refuse(
                format!("`auto` or a list of 1 to {WORKERS_MAX} CPU numbers"),
                "write `cpus = \"auto\"` or `cpus = [0, 1]`",
                complaints,
            );
            return cpus;
        }
    }
    for item in value.one_or_many() {
        let Some(cpu) = item.integer(0..=CPU_MAX, 0, complaints) else { continue };
        if cpus.contains(&cpu) {
            item.refuse("each CPU once", "remove the second mention: a worker owns its CPU", complaints);
        } else {
            cpus.push(cpu);
        }
    }
    cpus
}

pub fn control(value: &Value<'_>, complaints: &mut Complaints) -> Option<Control> {
    let fields = value.table(&names(&CONTROL), "[control]", complaints)?;
    let socket = fields.get("socket").and_then(|v| socket(&v, complaints));
    let metrics = fields.get("metrics").and_then(|v| {
        let text = v.text("an address and port", "metrics = \"127.0.0.1:9650\"", complaints)?;
        let parsed = text.parse().ok();
        if parsed.is_none() {
            v.refuse("an address and port to listen on", "write `\"127.0.0.1:9650\"`", complaints);
        }
        parsed
    });
    Some(Control { socket, metrics })
}

fn socket(value: &Value<'_>, complaints: &mut Complaints) -> Option<PathBuf> {
    /// `sun_path` less its closing zero.
    const SOCKET_PATH_MAX: usize = 107;
    let text = value.text("a path", "socket = \"/run/weir/router.sock\"", complaints)?;
    if !text.starts_with('/') || text.len() > SOCKET_PATH_MAX || text.contains('\0') {
        value.refuse(
            format!("an absolute path of at most {SOCKET_PATH_MAX} bytes"),
            "write `\"/run/weir/router.sock\"`",
            complaints,
        );
        return None;
    }
    Some(PathBuf::from(text))
}

pub fn limits(value: &Value<'_>, complaints: &mut Complaints) -> Option<Settings> {
    let fields = value.table(&names(&LIMITS), "[limits]", complaints)?;
    let usual = Settings::default();
    let mut rate = |key: &str, usual: u32| number(&fields, key, 0, ICMP_MAX, usual, complaints);
    let icmp_errors_per_second = rate("icmp_errors_per_second", usual.icmp_errors_per_second);
    let icmp_error_burst = rate("icmp_error_burst", usual.icmp_error_burst);
    let mut hold =
        |key: &str, usual: u16| number(&fields, key, 0, u16::MAX.into(), usual.into(), complaints) as u16;
    let hold_per_neighbor = hold("hold_per_neighbor", usual.hold_per_neighbor);
    let hold_total = hold("hold_total", usual.hold_total);
    if hold_per_neighbor > hold_total {
        let at = fields.get("hold_per_neighbor").map_or(fields.span.clone(), |v| v.span);
        complaints.add(
            at,
            format!(
                "limits: hold_per_neighbor is {hold_per_neighbor}, more than hold_total ({hold_total}); write at most {hold_total}"
            ),
        );
    }
    let check_extensions = fields.get("ipv6_extensions").and_then(|v| v.word(EXTENSIONS, complaints));
    let check_extensions = check_extensions.unwrap_or(usual.check_extensions);
    Some(Settings {
        icmp_errors_per_second,
        icmp_error_burst,
        hold_per_neighbor,
        hold_total,
        check_extensions,
    })
}

fn number(
    fields: &Fields<'_>,
    key: &str,
    low: u32,
    high: u32,
    usual: u32,
    complaints: &mut Complaints,
) -> u32 {
    fields.get(key).and_then(|v| v.integer(low..=high, usual, complaints)).unwrap_or(usual)
}
