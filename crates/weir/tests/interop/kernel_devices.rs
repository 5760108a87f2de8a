//! xfrm devices: what the kernel routes into one is sealed by weir, with the SAs and policies of its interface id that strongSwan
//! puts there. The peer is strongSwan with the kernel's own ESP. On a whole Debian (`make keys-test`), by AF_XDP: the second kernel
//! has no such devices.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use weir_io::process;

use crate::kernel::End;
use crate::kernel_keys::{
    IF_ID, STATE, hosts, kernels_numbers, outbound, rekey_by_turns, replayed, sas, under_load, with_daemons,
};
use crate::kernel_keys_peers::answers;
use crate::outside::Watch;
use crate::second_kernel::{figure, port_kind, rekeys};
use crate::strongswan::{Daemon, Setup};
use crate::testbed::{Family, Testbed, batch, run, until};
use crate::traffic::{Host, all, ping};
use crate::weir_gateway::Weir;

/// Runs `body` where the kernel has xfrm devices; says so where it has none.
fn with_devices(name: &str, body: impl FnOnce(&Testbed)) {
    with_daemons(name, || {
        let testbed = Testbed::watched();
        let add = format!("-n {} link add ipsec0 type xfrm dev l1 if_id 7", testbed.left);
        let made = Command::new("ip").args(add.split(' ')).output().expect("ip starts");
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr).trim().to_owned();
            writeln!(std::io::stderr(), "SKIP {name}: needs xfrm devices ({why}); `make keys-test` has them")
                .expect("stderr is open");
            return;
        }
        body(&testbed);
    });
}

/// weir with all there is from the kernel.
fn config() -> String {
    let kind = port_kind();
    let port = |name: &str, device: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\ndevice = \"{device}\"\nkind = \"{kind}\"\naddresses = \"kernel\"\n"
        )
    };
    "routes = \"kernel\"\nkeys = \"kernel\"\n".to_owned() + &port("lan", "l0") + &port("wan", "l1")
}

/// Both daemons, and routes into the left one's device.
fn daemons(testbed: &Testbed, child: &str) -> (Daemon, Daemon) {
    testbed.kernel_is_left();
    device_is_up(testbed);
    let setup = Setup { child, ..Setup::of_kernel("aes128gcm16") };
    let of_left = format!("{IF_ID}\n        {child}");
    let left = Daemon::start_as(testbed, End::Left, &Setup { child: &of_left, ..setup });
    (left, Daemon::start_as(testbed, End::Right, &setup))
}

fn device_is_up(testbed: &Testbed) {
    let far = Family::V4.row().nets[1];
    let lines = ["link set ipsec0 up".to_owned(), format!("route replace {far} dev ipsec0 src 10.1.0.1")];
    batch(Some(&testbed.left), &lines);
}

/// The left gateway itself, behind the tunnel.
fn own(testbed: &Testbed) -> Host<'_> {
    Host { ns: &testbed.left, ip: crate::testbed::ip("10.1.0.1") }
}

/// SPIs by which the kernel sends nothing.
fn fenced(testbed: &Testbed) -> BTreeSet<u32> {
    let numbers = kernels_numbers(testbed).into_iter();
    numbers.filter(|(_, sent, _)| *sent == u64::from(u32::MAX)).map(|(spi, ..)| spi).collect()
}

/// A ping every few milliseconds until it is dropped, whoever answers.
struct Pings(Child);

impl Pings {
    fn begin(from: Host<'_>, to: Host<'_>) -> Pings {
        let (near, far) = (from.ip.to_string(), to.ip.to_string());
        let mut ping = Command::new("ip");
        ping.args(["netns", "exec", from.ns, "ping", "-n", "-q", "-i", "0.01", "-I", &near, &far]);
        ping.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Pings(process::dies_with_starter(&mut ping).spawn().expect("ping starts"))
    }
}

impl Drop for Pings {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// weir carries what is routed into the device, and everything of it.
fn carries(testbed: &Testbed, weir: &Weir) {
    until("weir has SAs both ways", || (sas(weir) == 2 && !outbound(weir).is_empty()).then_some(()));
    let (a, b) = hosts(testbed);
    until("packets pass", || answers(a, b).then_some(()));
    let counted = || weir.metric("weir_policy_packets_total", "spd=\"ipsec0\"");
    let before = counted();
    all(a, b, 200, 300_000);
    assert!(counted() >= before + 400, "{}", weir.told(&["show", "spd"]));
}

#[test]
fn what_is_routed_into_a_device_is_carried_and_rekeyed_under_traffic() {
    with_devices(
        "kernel_devices::what_is_routed_into_a_device_is_carried_and_rekeyed_under_traffic",
        |testbed| {
            let (left, right) = daemons(testbed, "");
            let weir = Weir::start_with(testbed, &config(), STATE);
            let watch = Watch::begin(testbed);
            left.agree();
            carries(testbed, &weir);
            assert_eq!(fenced(testbed).len(), 1, "{}", run(&format!("ip -n {} -s xfrm state", testbed.left)));

            let (a, b) = hosts(testbed);
            ping(b, a);
            let [out, back] = under_load(testbed, |lost| {
                rekey_by_turns([&left, &right], &weir, rekeys().min(6), lost);
            });
            figure(&format!(
                "a device: {} rekeys, {out} packets out and {back} in, none lost",
                rekeys().min(6)
            ));
            assert!(out > 0 && back > 0, "{out} out, {back} in");
            until("the old SAs are gone", || (sas(&weir) == 2).then_some(()));
            left.told("--terminate", &["--child", "row"]);
            until("weir has none", || (sas(&weir) == 0).then_some(()));
            assert!(!answers(a, b), "an answer without a tunnel");
            weir.assert_conserved();
            watch.end_well();
        },
    );
}

/// Killed and ended in order while packets go both ways, and while the host itself sends into the device: with weir away the kernel
/// sends nothing by what weir had, and nobody gives out a number twice.
#[test]
fn a_weir_that_is_killed_or_stopped_leaves_the_device_to_nobody_who_repeats_a_number() {
    with_devices(
        "kernel_devices::a_weir_that_is_killed_or_stopped_leaves_the_device_to_nobody_who_repeats_a_number",
        |testbed| {
            let (left, right) = daemons(testbed, "");
            let mut weir = Weir::start_with(testbed, &config(), STATE);
            let watch = Watch::begin(testbed);
            left.agree();
            carries(testbed, &weir);
            let (a, b) = hosts(testbed);
            let traffic = [Pings::begin(a, b), Pings::begin(b, a), Pings::begin(own(testbed), b)];
            for (round, in_order) in [false, true, false, false, true].into_iter().enumerate() {
                thread::sleep(Duration::from_millis(700));
                if in_order {
                    weir.stop();
                }
                drop(weir);
                let without = fenced(testbed);
                assert_eq!(without.is_empty(), in_order, "round {round}: {without:?}");
                thread::sleep(Duration::from_millis(700));
                weir = Weir::start_with(testbed, &config(), STATE);
                until("packets pass again", || answers(a, b).then_some(()));
                until("the host's own pass again", || answers(own(testbed), b).then_some(()));
            }
            drop(traffic);
            assert_eq!(replayed(&testbed.right), "0", "a sequence number came twice");
            weir.assert_conserved();
            drop(right);
            watch.end_well();
        },
    );
}

/// The device is set down and up, and deleted and made again.
#[test]
fn a_device_that_goes_down_or_away_takes_its_traffic_with_it_and_nothing_leaves_in_cleartext() {
    with_devices(
        "kernel_devices::a_device_that_goes_down_or_away_takes_its_traffic_with_it_and_nothing_leaves_in_cleartext",
        |testbed| {
            let (left, right) = daemons(testbed, "");
            // What the device's route leaves behind must not find another.
            let far = Family::V4.row().nets[1];
            batch(Some(&testbed.left), &[format!("route add unreachable {far} metric 4000")]);
            let weir = Weir::start_with(testbed, &config(), STATE);
            let watch = Watch::begin(testbed);
            left.agree();
            carries(testbed, &weir);
            let (a, b) = hosts(testbed);
            let traffic = [Pings::begin(a, b), Pings::begin(b, a)];
            run(&format!("ip -n {} link set ipsec0 down", testbed.left));
            until("nothing passes", || (!answers(a, b)).then_some(()));
            device_is_up(testbed);
            until("packets pass again", || answers(a, b).then_some(()));
            run(&format!("ip -n {} link del ipsec0", testbed.left));
            until("nothing passes", || (!answers(a, b)).then_some(()));
            batch(Some(&testbed.left), &["link add ipsec0 type xfrm dev l1 if_id 7".to_owned()]);
            device_is_up(testbed);
            until("packets pass again", || answers(a, b).then_some(()));
            drop(traffic);
            carries(testbed, &weir);
            assert_eq!(replayed(&testbed.right), "0", "a sequence number came twice");
            weir.assert_conserved();
            drop(right);
            watch.end_well();
        },
    );
}
