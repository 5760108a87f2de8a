//! The checks, in the order an experimenter meets them.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use weir_core::packet::DeviceId;
use weir_io::af_xdp::{AfXdp, Options};
use weir_io::bpf::attach::XdpMode;
use weir_io::perf_event::{STACK_BYTES, Sampler, Target, Wish};
use weir_io::steer::{LocalAddresses, Steering};
use weir_io::umem::{ChunkSize, Umem};
use weir_io::{clock, netlink};

use super::pauses;
use crate::build::Build;
use crate::diagnostic::{Diagnostic, Severity};
use crate::machine::{Machine, version};
use crate::netns::namespace::Namespace;
use crate::sut::peer;

pub fn all() -> Vec<Diagnostic> {
    let machine = Machine::observe();
    let (namespaces, af_xdp) = networking();
    let mut all = vec![
        build(),
        cpus(&machine),
        smt(&machine),
        virtualisation(&machine),
        governor(&machine),
        turbo(&machine),
        load(&machine),
        priority(&machine),
        huge_pages(&machine),
        clocks(&machine),
        sleep(),
        pauses::pauses(),
        counters(),
        sampling(),
        namespaces,
        af_xdp,
        tool("ministat", "ministat", None, "prints blocks outside weir-lab, which computes its own"),
        tool("ssh", "ssh", Some("-V"), "drives experiments on other hosts"),
        tool("valgrind", "valgrind", Some("--version"), "simulates caches: `weir-lab profile cachesim`"),
        tool("chromium", "chromium", Some("--version"), "turns report.html into a picture"),
    ];
    all.extend(PEERS.map(|(name, means, remedy)| found_peer(name, means, remedy)));
    all
}

/// Programs of others to compare with, and how to have them.
const PEERS: [(&str, &str, &str); 7] = [
    ("dpdk-testpmd", "a forwarder that looks up no route: the upper bound", "apt install dpdk-dev"),
    ("dpdk-l3fwd", "a forwarder by longest prefix match", "scripts/peers dpdk-l3fwd"),
    ("dpdk-ipsec-secgw", "an IPsec gateway that seals in memory", "scripts/peers dpdk-ipsec-secgw"),
    (
        "vpp",
        "a router and ESP gateway",
        "`scripts/peers vpp --source DIR` builds it from a source tree of yours",
    ),
    ("charon", "strongSwan's ESP between gateways", "apt install strongswan-swanctl strongswan-charon"),
    ("derper", "a DERP relay", "scripts/peers derper"),
    ("hyper-derp", "a DERP relay, plain", "install it by its own instructions, on the PATH"),
];

fn found_peer(name: &'static str, means: &str, remedy: &str) -> Diagnostic {
    if peer::find(name).is_none() {
        return Diagnostic::check(name, Severity::Note, "not found", format!("optional peer: {means}"))
            .remedy(remedy);
    }
    let version = peer::version(name).unwrap_or("of unknown version".into());
    Diagnostic::check(name, Severity::Ok, version, format!("a peer to compare with: {means}"))
}

fn build() -> Diagnostic {
    let build = Build::own();
    if build.optimised() {
        let found = format!("{} {}", build.profile, build.flags);
        return Diagnostic::check("build", Severity::Ok, found, "values are those of the code users run");
    }
    Diagnostic::check("build", Severity::Missing, "without optimisation", "values say nothing about speed")
        .remedy("cargo build --release, then ./target/release/weir-lab")
}

fn cpus(m: &Machine) -> Diagnostic {
    let found = format!("{}, {} cores, {} threads", m.cpu, m.cores, m.threads);
    match m.cores {
        0 | 1 => {
            Diagnostic::check("cores", Severity::Note, found, "generator, SUT and receiver share one core")
                .remedy("use three cores or more for values of a SUT alone")
        }
        2 => Diagnostic::check(
            "cores",
            Severity::Note,
            found,
            "in namespaces, SUT and load share a core; reports show the baseline",
        )
        .remedy("use three cores or more; the memory topology needs one"),
        _ => Diagnostic::check("cores", Severity::Ok, found, "generator, SUT and receiver each get a core"),
    }
}

fn smt(m: &Machine) -> Diagnostic {
    if m.smt {
        return Diagnostic::check("SMT", Severity::Ok, "on", "placements on sibling threads can be compared");
    }
    Diagnostic::check(
        "SMT",
        Severity::Note,
        "none or off",
        "labs/question-placement.toml skips its sibling-pair configurations",
    )
    .remedy("switch SMT on in the firmware to compare them")
}

fn virtualisation(m: &Machine) -> Diagnostic {
    match &m.virtualisation {
        None => {
            Diagnostic::check("machine", Severity::Ok, "no hypervisor seen", "no other guests steal time")
        }
        Some(what) => Diagnostic::check(
            "machine",
            Severity::Note,
            format!("virtual: {what}"),
            "other guests move values by some percent",
        )
        .remedy("compare within one campaign, raise `runs`, distrust absolute values"),
    }
}

fn governor(m: &Machine) -> Diagnostic {
    match m.governor.as_deref() {
        Some("performance") => {
            Diagnostic::check("governor", Severity::Ok, "performance", "the clock does not sleep")
        }
        Some(other) => Diagnostic::check(
            "governor",
            Severity::Note,
            other,
            "the clock rises during warm-up, values with it",
        )
        .remedy("echo performance > /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor, each CPU"),
        None => Diagnostic::check(
            "governor",
            Severity::Note,
            "not said by this kernel",
            "firmware or hypervisor chooses the clock",
        ),
    }
}

fn turbo(m: &Machine) -> Diagnostic {
    match m.turbo {
        Some(true) => {
            Diagnostic::check("turbo", Severity::Note, "on", "the clock follows heat: long campaigns drift")
                .remedy("echo 0 > /sys/devices/system/cpu/cpufreq/boost (or 1 > …/intel_pstate/no_turbo)")
        }
        Some(false) => Diagnostic::check("turbo", Severity::Ok, "off", "the clock stays where it is"),
        None => Diagnostic::check(
            "turbo",
            Severity::Note,
            "not said by this kernel",
            "drift warnings in reports tell whether it matters",
        ),
    }
}

fn load(m: &Machine) -> Diagnostic {
    /// Work of others, in CPUs, that a value does not feel.
    const CALM: f64 = 0.3;
    match m.load_1min {
        Some(load) if load > CALM => {
            let found = format!("{load:.2} CPUs in the last minute");
            Diagnostic::check("load", Severity::Note, found, "others use the CPUs values are made on")
                .remedy("stop what runs, or wait a minute")
        }
        Some(load) => Diagnostic::check(
            "load",
            Severity::Ok,
            format!("{load:.2} CPUs in the last minute"),
            "the machine is calm",
        ),
        None => Diagnostic::check(
            "load",
            Severity::Note,
            "not said by this kernel",
            "noise warnings in reports tell",
        ),
    }
}

fn priority(m: &Machine) -> Diagnostic {
    match m.priority {
        Some(usual) if usual.is_usual() => Diagnostic::check(
            "priority",
            Severity::Ok,
            usual.to_string(),
            "the kernel's own threads get their turn",
        ),
        Some(other) => Diagnostic::check(
            "priority",
            Severity::Note,
            other.to_string(),
            "a raised one keeps the kernel's threads from their packets, a lowered one waits for others",
        )
        .remedy("start it without `nice` or `chrt`; `echo 0 > /proc/self/autogroup` in the session"),
        None => Diagnostic::check(
            "priority",
            Severity::Note,
            "not said by this kernel",
            "assumed to be the usual one",
        ),
    }
}

fn huge_pages(m: &Machine) -> Diagnostic {
    match m.transparent_huge_pages.as_deref() {
        Some(mode @ ("always" | "madvise")) => Diagnostic::check(
            "huge pages",
            Severity::Ok,
            format!("transparent, {mode}"),
            "large route tables miss the TLB less",
        ),
        other => {
            let found = other.unwrap_or("not in this kernel");
            Diagnostic::check(
                "huge pages",
                Severity::Note,
                found,
                "lookups in full tables pay for TLB misses",
            )
            .remedy("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
        }
    }
}

fn clocks(m: &Machine) -> Diagnostic {
    let source = m.clocksource.as_deref().unwrap_or("unknown");
    let reading = reading_ns();
    match m.tsc_hz {
        Some(hz) => {
            let ghz = hz as f64 / 1e9;
            let found = format!("TSC {ghz:.3} GHz, clock source {source}, {reading} ns a reading");
            Diagnostic::check("clocks", Severity::Ok, found, "cycles/packet are TSC clocks, not core clocks")
        }
        None => {
            let found = format!("no TSC, clock source {source}, {reading} ns a reading");
            Diagnostic::check("clocks", Severity::Note, found, "reports show ns a packet, no clocks")
        }
    }
}

/// Cost of reading the monotonic clock, the resolution of everything timed here.
fn reading_ns() -> u64 {
    const READINGS: u64 = 10_000;
    let start = clock::now();
    let mut last = start;
    for _ in 0..READINGS {
        last = clock::now();
    }
    (last - start) / READINGS
}

fn sleep() -> Diagnostic {
    const ASKED: Duration = Duration::from_micros(100);
    const SLEEPS: u32 = 20;
    let start = clock::now();
    for _ in 0..SLEEPS {
        std::thread::sleep(ASKED);
    }
    let late = ((clock::now() - start) / u64::from(SLEEPS)).saturating_sub(ASKED.as_nanos() as u64);
    let found = format!("a sleep of 100 µs ends {:.0} µs late", late as f64 / 1e3);
    Diagnostic::check("timers", Severity::Ok, found, "paced generators spin instead of sleeping")
}

fn counters() -> Diagnostic {
    let folders = ["cpu", "cpu_core"].map(|d| Path::new("/sys/bus/event_source/devices").join(d));
    if folders.iter().any(|d| d.exists()) {
        let means = "cache misses and core cycles can be measured";
        return Diagnostic::check("counters", Severity::Ok, "the processor counts events here", means);
    }
    Diagnostic::check(
        "counters",
        Severity::Note,
        "no performance counters",
        "TSC clocks only: no cache misses, no core cycles",
    )
    .remedy("use bare metal, or a virtual machine with a virtual PMU; `weir-lab profile cachesim` simulates caches")
}

/// Tries to sample a whole CPU, as profiles of the netns topology do.
fn sampling() -> Diagnostic {
    let wish = Wish { frequency_hz: 97, stack_bytes: STACK_BYTES };
    match Sampler::start(&Target::Cpus(vec![0]), wish) {
        Err(e) => {
            let means = "no profiles of whole CPUs: `run --profile` says so instead of a flame graph";
            Diagnostic::check("profiles", Severity::Missing, e.to_string(), means)
                .remedy("run as root, or sysctl kernel.perf_event_paranoid=-1 kernel.kptr_restrict=0")
        }
        Ok(sampler) => {
            let recording = sampler.stop();
            let found = format!("{} can be sampled on whole CPUs", recording.event.name());
            match recording.notes.is_empty() {
                true => Diagnostic::check(
                    "profiles",
                    Severity::Ok,
                    found,
                    "`run --profile` shows where cycles go",
                ),
                false => Diagnostic::check("profiles", Severity::Note, found, recording.notes.join("; "))
                    .remedy("use bare metal for cycles, root for the kernel's share"),
            }
        }
    }
}

/// Tries namespaces with a veth pair, and AF_XDP on it.
fn networking() -> (Diagnostic, Diagnostic) {
    let deployed = Namespace::new("doctor").and_then(|ns| {
        ns.ip("link add lab0 type veth peer name lab1")?;
        ns.ip("link set lab0 up")?;
        ns.ip("link set lab1 up")?;
        Ok(ns)
    });
    let namespace = match deployed {
        Ok(namespace) => namespace,
        Err(e) => {
            let namespaces = Diagnostic::check(
                "namespaces",
                Severity::Missing,
                e.said,
                "topology netns is skipped; memory works",
            )
            .remedy("run as root on a kernel with CONFIG_NET_NS and CONFIG_VETH, with iproute2 installed");
            let untried = "not tried: it needs a namespace";
            let af_xdp =
                Diagnostic::check("AF_XDP", Severity::Missing, untried, "weir in namespaces is skipped")
                    .remedy("see namespaces");
            return (namespaces, af_xdp);
        }
    };
    let found = "a veth pair in a namespace of its own works";
    let namespaces = Diagnostic::check("namespaces", Severity::Ok, found, "topology netns can be measured");
    let tried = namespace.run(|| af_xdp("lab0")).unwrap_or_else(|e| Err(e.into()));
    let af_xdp = match tried {
        Ok(how) => Diagnostic::check("AF_XDP", Severity::Ok, how, "weir can be measured by its default port"),
        Err(e) => Diagnostic::check(
            "AF_XDP",
            Severity::Missing,
            e.to_string(),
            "weir falls back to AF_PACKET, and reports say so",
        )
        .remedy("use a kernel with CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL"),
    };
    (namespaces, af_xdp)
}

/// How a queue of `interface` was attached and bound.
fn af_xdp(interface: &str) -> Result<String, Box<dyn Error + Send + Sync>> {
    /// Chunks for the rings of one queue.
    const CHUNKS: u32 = 4096;
    let link = netlink::link(interface)?.ok_or("the veth vanished")?;
    let local = LocalAddresses::new()?;
    let steering = Steering::attach(interface, link.index, &[XdpMode::Native, XdpMode::Generic], &local)?;
    let umem = Umem::new(CHUNKS, ChunkSize::Bytes2048)?;
    let port = AfXdp::open(&Options::new(DeviceId(0), 0), &steering, &umem)?;
    Ok(format!("attached and bound on veth: {}, {}", port.report().bind, port.report().xdp))
}

fn tool(what: &'static str, program: &str, flag: Option<&str>, means: &str) -> Diagnostic {
    if peer::on_path(program).is_none() {
        return Diagnostic::check(what, Severity::Note, "not installed", format!("optional: {means}"))
            .remedy(format!("apt install {program}"));
    }
    let said = flag.and_then(|flag| version(program, flag));
    Diagnostic::check(what, Severity::Ok, said.unwrap_or("installed".into()), means)
}
