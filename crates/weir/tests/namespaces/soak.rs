//! Two gateways under load that are changed and disturbed all the time: they carry on after each change, lose nothing from
//! their books, accept nothing twice, and need no more memory, descriptors or threads at the end than after the first while.
//!
//! `WEIR_SOAK_SECONDS` says how long (`make soak`); `WEIR_FUZZ_SEED` chooses the same changes again.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use weir_testing::fuzz::{Random, seed};
use weir_testing::process::resident;

use super::gateways::{GCM, Gateways, Side, families, pair, ports, tunnel, ways};
use super::restarts::Load;
use super::testbed::{Router, Wire, run};

/// Where nobody says otherwise, in seconds.
const SHORT: u64 = 20;
/// The part of the time after which nothing may grow any more.
const WARM: u32 = 3;
/// What the allocator may keep of the largest moment, in a week as in a minute.
const SLACK: usize = 8 << 20;
/// Routes that come and go.
const ROUTES: usize = 500;
const NAMES: [&str; 4] = ["a-east", "a-west", "b-east", "b-west"];

/// What a process has.
#[derive(Clone, Copy, Debug)]
struct Holds {
    resident: usize,
    descriptors: usize,
    threads: usize,
}

fn holds(router: &Router) -> Holds {
    let process = format!("/proc/{}", router.pid());
    let count = |folder: &str| std::fs::read_dir(format!("{process}/{folder}")).expect("it runs").count();
    let resident = resident(&router.pid().to_string()) as usize;
    Holds { resident, descriptors: count("fd"), threads: count("task") }
}

/// What a side's file says: a tunnel by each pair of SAs, routes of networks by one of them, and some more routes.
fn text(side: Side, pair_name: &str, routes: usize) -> String {
    let outer = families()[0];
    let mut text = ports(side, "af_packet") + &pair(side, "a", 0x1000, outer, GCM);
    text += &(pair(side, "b", 0x2000, outer, GCM) + &tunnel(side, pair_name));
    let (out, inbound) = ways(side, if pair_name == "a" { "b" } else { "a" });
    text += &format!("[[tunnel]]\nname = \"spare\"\nout = \"{out}\"\nin = \"{inbound}\"\n");
    for n in 0..routes {
        write!(text, "[[route]]\nprefix = \"198.18.{}.{}/32\"\nvia = \"10.2.0.9\"\n", n >> 8, n & 255)
            .expect("a text");
    }
    text
}

/// Changes of one side, and what is done to it.
struct Change<'a> {
    testbed: &'a Gateways,
    routers: [Router; 2],
    wires: [Wire; 2],
    random: Random,
    /// The pair of SAs that tunnels go by.
    by: &'static str,
}

impl Change<'_> {
    fn apply(&mut self, side: Side) {
        let routes = self.random.below(ROUTES);
        let file = self.testbed.next(side, &text(side, self.by, routes)).display().to_string();
        self.routers[side as usize].told(&["apply", &file]);
    }

    /// Frames that nobody sent: noise behind a header that is right, and ESP of no SA.
    fn noise(&mut self, side: Side) {
        let (router, device) = [("r1", "s0"), ("s0", "r1")][side as usize];
        let (here, there) = match side {
            Side::West => (&self.testbed.west.router, &self.testbed.east.router),
            Side::East => (&self.testbed.east.router, &self.testbed.west.router),
        };
        let (to, from) = (self.testbed.west.mac(here, router), self.testbed.west.mac(there, device));
        for _ in 0..200 {
            let length = 20 + self.random.below(1200);
            let mut frame = [to.as_slice(), &from, [&[8, 0], &[0x86, 0xdd]][self.random.below(2)]].concat();
            frame.push([0x45, 0x60, 0x46, 0][self.random.below(4)]);
            frame.extend((0..length).map(|_| self.random.bits() as u8));
            if self.random.below(2) == 0 {
                frame[23] = 50;
            }
            self.wires[1 - side as usize].send(&frame);
        }
    }

    fn step(&mut self) {
        let side = [Side::West, Side::East][self.random.below(2)];
        let (ns, device) = match side {
            Side::West => (self.testbed.west.router.clone(), "r1"),
            Side::East => (self.testbed.east.router.clone(), "s0"),
        };
        let router = &self.routers[side as usize];
        match self.random.below(8) {
            0 => self.apply(side),
            1 => {
                // The other pair of SAs from now on, at both ends.
                self.by = if self.by == "a" { "b" } else { "a" };
                self.apply(Side::East);
                self.apply(Side::West);
            }
            2 => {
                run(&format!("ip -n {ns} link set {device} down"));
                run(&format!("ip -n {ns} link set {device} up"));
                run(&format!(
                    "ip -n {ns} addr replace {} dev {device}",
                    if side == Side::West { "fd02::1/64" } else { "fd02::2/64" }
                ));
            }
            3 => {
                let mtu = [1500, 1400, 1300][self.random.below(3)];
                run(&format!("ip -n {ns} link set {device} mtu {mtu}"));
                run(&format!("ip -n {ns} link set {device} mtu 1500"));
            }
            4 => drop(run(&format!("ip -n {ns} neigh flush dev {device}"))),
            5 => self.noise(side),
            6 => {
                router.signal("STOP");
                std::thread::sleep(Duration::from_millis(100));
                router.signal("CONT");
            }
            _ => {
                for topic in ["status", "ports", "routes", "sa", "tunnels", "drops"] {
                    router.told(&["show", topic]);
                }
                assert!(router.metrics().contains("weir_build_info"));
            }
        }
    }
}

#[test]
fn gateways_that_are_changed_and_disturbed_all_the_time_carry_on_and_grow_no_more() {
    let test = "gateways_that_are_changed_and_disturbed_all_the_time_carry_on_and_grow_no_more";
    let Some(testbed) = Gateways::new(test) else { return };
    let told = std::env::var("WEIR_SOAK_SECONDS").ok().and_then(|n| n.parse::<u64>().ok());
    let length = Duration::from_secs(told.unwrap_or(SHORT));
    testbed.keys(&NAMES, GCM);
    let routers = testbed.start(|side| text(side, "a", 0));
    let wires = [Wire::open(&testbed.west.router, "r1"), Wire::open(&testbed.east.router, "s0")];
    let load = Load::start(&testbed);
    load.arrives();
    let mut change = Change { testbed: &testbed, routers, wires, random: Random::new(seed()), by: "a" };
    // All there is, once: what grows only to what it may be has grown.
    for side in [Side::West, Side::East] {
        let file = testbed.next(side, &text(side, "a", ROUTES)).display().to_string();
        change.routers[side as usize].told(&["apply", &file]);
    }
    let begun = Instant::now();
    let (mut steps, mut warm, mut said) = (0, None, begun);
    while begun.elapsed() < length {
        change.step();
        load.arrives();
        steps += 1;
        if warm.is_none() && begun.elapsed() > length / WARM {
            warm = Some([holds(&change.routers[0]), holds(&change.routers[1])]);
        }
        if told.is_some() && said.elapsed() > Duration::from_secs(60) {
            said = Instant::now();
            println!("{:?}: {steps} changes, {:?}", begun.elapsed(), holds(&change.routers[0]));
        }
    }
    let (sent, came) = load.end();
    let [west, east] = &change.routers;
    for (router, warm) in [west, east].into_iter().zip(warm.expect("it was long enough")) {
        router.assert_conserved();
        let now = holds(router);
        assert!(now.resident <= warm.resident + SLACK, "{now:?} after {steps} changes, {warm:?} before");
        assert!(now.descriptors <= warm.descriptors + 2 && now.threads <= warm.threads, "{now:?}, {warm:?}");
    }
    assert_eq!(came.twice, Vec::<u64>::new(), "numbers that came twice");
    println!(
        "{:?}: {steps} changes, {sent} packets sent, {} came, none twice; {:?} and {:?}",
        begun.elapsed(),
        came.numbers.len(),
        holds(west),
        holds(east)
    );
}
