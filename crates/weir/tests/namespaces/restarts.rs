//! Gateways that are killed and come back: no packet is accepted twice, no number given out twice, and the other
//! end is not touched.

use std::collections::HashSet;
use std::fs;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::gateways::{GCM, Gateways, Side, Suite, families, pair, ports, tunnel};
use super::testbed::{Router, Wire, until};
use super::traffic::{ping, send_udp};

/// Two gateways with one tunnel, over packet sockets: what is between them can be recorded.
fn gateways(test: &str, more: &'static str) -> Option<(Gateways, impl Fn(Side) -> String)> {
    let testbed = Gateways::new(test)?;
    let suite = Suite { more, ..GCM };
    testbed.keys(&["a-east", "a-west"], suite);
    let outer = families()[0];
    Some((testbed, move |side| {
        ports(side, "af_packet") + &pair(side, "a", 0x1000, outer, suite) + &tunnel(side, "a")
    }))
}

fn works(testbed: &Gateways) {
    let ends = families()[0];
    ping(&testbed.west, ends.client, ends.far);
}

fn again(testbed: &Gateways, side: Side, text: &str) -> Router {
    let router = testbed.testbed(side).spawn(text, &[]);
    router.wait_for("is ready");
    router
}

fn sequence(router: &Router, direction: &str) -> i64 {
    router.metric("weir_sa_sequence", &format!("direction=\"{direction}\""))
}

fn refused(router: &Router) -> i64 {
    let of = |reason: &str| router.metric("weir_sa_failures_total", &format!("reason=\"{reason}\""));
    // With ESN, what is far left of the window is taken for a number of the next 2^32, which its ICV denies.
    of("replayed") + of("replay_too_old") + of("integrity_failed")
}

/// Frames with ESP in them.
fn esp(heard: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    heard.into_iter().filter(|f| f.get(12..14) == Some(&[0x08, 0x00]) && f.get(23) == Some(&50)).collect()
}

/// What west sends east while `work` goes on, at least one packet.
fn recorded(testbed: &Gateways, work: impl FnOnce()) -> Vec<Vec<u8>> {
    let mut wire = Wire::open(&testbed.east.router, "s0");
    work();
    let mut heard = Vec::new();
    until("ESP is heard", || {
        heard.extend(esp(wire.heard()));
        (!heard.is_empty()).then_some(())
    });
    heard
}

/// Sends recorded packets to east again, which refuses all of them.
fn replay(testbed: &Gateways, east: &Router, recorded: &[Vec<u8>]) {
    let (before, accepted) = (refused(east), east.metric("weir_sa_packets_total", "direction=\"in\""));
    let mut wire = Wire::open(&testbed.west.router, "r1");
    recorded.iter().for_each(|frame| wire.send(frame));
    let all = before + recorded.len() as i64;
    until("recorded packets are refused", || (refused(east) >= all).then_some(()));
    assert_eq!(east.metric("weir_sa_packets_total", "direction=\"in\""), accepted, "none was accepted");
}

/// The state of a gateway's SAs on disk, and the counters of the process that was killed.
fn files(testbed: &Gateways, side: Side) -> (PathBuf, PathBuf) {
    let folder = &testbed.testbed(side).folder;
    let counters = fs::read_dir(folder).expect("a folder").flatten().map(|e| e.path());
    let counters = counters.filter(|p| p.extension().is_some_and(|e| e == "counters")).max();
    (folder.join("state/sa.state"), counters.expect("a killed process left its counters"))
}

#[test]
fn a_killed_receiver_refuses_what_was_recorded_and_takes_what_is_new() {
    let Some((testbed, text)) =
        gateways("a_killed_receiver_refuses_what_was_recorded_and_takes_what_is_new", "")
    else {
        return;
    };
    let [_west, mut east] = testbed.start(&text);
    let packets = recorded(&testbed, || works(&testbed));
    for _ in 0..3 {
        let seen = sequence(&east, "in");
        east.kill();
        east = again(&testbed, Side::East, &text(Side::East));
        assert_eq!(sequence(&east, "in"), seen, "exactly where it stopped");
        replay(&testbed, &east, &packets);
        works(&testbed);
    }
    east.assert_conserved();
}

#[test]
fn a_killed_sender_goes_on_and_its_peer_never_notices() {
    let Some((testbed, text)) = gateways("a_killed_sender_goes_on_and_its_peer_never_notices", "") else {
        return;
    };
    let [mut west, east] = testbed.start(&text);
    works(&testbed);
    for _ in 0..3 {
        let (sent, failed) = (sequence(&west, "out"), refused(&east));
        west.kill();
        west = again(&testbed, Side::West, &text(Side::West));
        assert!(sequence(&west, "out") >= sent, "{sent} was given out before");
        works(&testbed);
        assert_eq!(refused(&east), failed, "nothing looked replayed");
    }
}

#[test]
fn both_ends_killed_at_once_go_on() {
    let Some((testbed, text)) = gateways("both_ends_killed_at_once_go_on", "") else { return };
    let [mut west, mut east] = testbed.start(&text);
    let packets = recorded(&testbed, || works(&testbed));
    west.kill();
    east.kill();
    let [_west, east] = testbed.start(&text);
    works(&testbed);
    replay(&testbed, &east, &packets);
}

#[test]
fn an_end_in_order_leaves_exact_state_on_disk() {
    let Some((testbed, text)) = gateways("an_end_in_order_leaves_exact_state_on_disk", "") else { return };
    let [_west, mut east] = testbed.start(&text);
    let packets = recorded(&testbed, || works(&testbed));
    let (sent, taken) = (sequence(&east, "out"), sequence(&east, "in"));
    east.signal("TERM");
    assert!(east.wait(), "{}", east.log());
    let left = fs::read_dir(&testbed.east.folder).expect("a folder").flatten().map(|e| e.path());
    assert!(
        left.filter(|p| p.extension().is_some_and(|e| e == "counters")).count() == 0,
        "not needed any more"
    );
    let east = again(&testbed, Side::East, &text(Side::East));
    assert_eq!((sequence(&east, "out"), sequence(&east, "in")), (sent, taken));
    replay(&testbed, &east, &packets);
    works(&testbed);
}

#[test]
fn after_a_power_cut_it_goes_on_above_what_was_reserved() {
    let Some((testbed, text)) = gateways("after_a_power_cut_it_goes_on_above_what_was_reserved", "") else {
        return;
    };
    let [mut west, mut east] = testbed.start(&text);
    let packets = recorded(&testbed, || works(&testbed));
    let sent = sequence(&west, "out");
    for (side, router) in [(Side::West, &mut west), (Side::East, &mut east)] {
        router.kill();
        // Another boot: counters of a process say nothing of what the disk had.
        let (_, counters) = files(&testbed, side);
        let mut bytes = fs::read(&counters).expect("counters");
        bytes[40] ^= 1;
        fs::write(&counters, bytes).expect("ours");
    }
    let [west, east] = testbed.start(&text);
    assert!(sequence(&west, "out") >= sent + (1 << 19), "{} after {sent}", sequence(&west, "out"));
    assert!(sequence(&east, "in") >= sent);
    replay(&testbed, &east, &packets);
    // Both ends jumped, so both hear each other.
    works(&testbed);
}

#[test]
fn a_hard_lifetime_goes_on_after_a_kill() {
    let more = "soft = { packets = 19 }\nhard = { packets = 20 }";
    let Some((testbed, text)) = gateways("a_hard_lifetime_goes_on_after_a_kill", more) else { return };
    let [mut west, _east] = testbed.start(&text);
    let far = families()[0].far;
    let packets = |router: &Router| router.metric("weir_sa_packets_total", "direction=\"out\"");
    let expired = |router: &Router| {
        let label = "reason=\"sa_expired\"";
        router.values("weir_sa_failures_total", label).iter().sum::<i64>()
    };
    for sent in 1..=12 {
        send_udp(&testbed.west, far);
        west.wait_for_metric("weir_sa_packets_total", "direction=\"out\"", sent);
    }
    west.kill();
    west = again(&testbed, Side::West, &text(Side::West));
    assert!(packets(&west) >= 12, "what was used is used");
    until("the SA has carried what it may", || {
        send_udp(&testbed.west, far);
        (expired(&west) > 0).then_some(())
    });
    assert_eq!(packets(&west), 20);
    west.kill();
    west = again(&testbed, Side::West, &text(Side::West));
    send_udp(&testbed.west, far);
    until("it stays expired", || (expired(&west) > 0).then_some(()));
    assert_eq!(packets(&west), 20);
}

#[test]
fn without_state_that_can_be_kept_sas_run_only_at_an_accepted_risk() {
    let test = "without_state_that_can_be_kept_sas_run_only_at_an_accepted_risk";
    let Some((testbed, text)) = gateways(test, "") else { return };
    let [mut west, mut east] = testbed.start(&text);
    works(&testbed);
    east.kill();
    let (file, _) = files(&testbed, Side::East);
    let good = fs::read(&file).expect("a state file");
    let refuses = |text: &str, why: &str| {
        let mut refused = testbed.east.spawn(text, &[]);
        assert!(!refused.wait(), "{}", refused.log());
        for said in [why, "recorded packets would be accepted", "--accept-replay-risk"] {
            assert!(refused.log().contains(said), "no `{said}`:\n{}", refused.log());
        }
    };
    let said = text(Side::East);
    let mut damaged = good.clone();
    *damaged.last_mut().expect("records") ^= 1;
    for (content, why) in [
        (damaged, "has a wrong checksum in record"),
        (good[..100].to_vec(), "bytes behind its header"),
        (Vec::new(), "has 0 bytes, expected at least 64"),
        (
            b"something of another program that lies here, 64 bytes and more than that".to_vec(),
            "is not a state file of weir",
        ),
    ] {
        fs::write(&file, content).expect("ours");
        refuses(&said, why);
    }
    let nowhere = said.replace("[ipsec]\n", "[ipsec]\nstate_dir = \"/proc/weir\"\n");
    refuses(&nowhere, "state directory /proc/weir: cannot be made");

    let risked = nowhere.replace("[ipsec]\n", "[ipsec]\naccept_replay_risk = true\n");
    let east = again(&testbed, Side::East, &risked);
    assert!(east.log().contains("told to accept the risk"), "{}", east.log());
    assert!(east.told(&["show", "sa"]).contains("2 of 2 keep no state on disk"));
    assert!(east.told(&["show", "status"]).contains("may be accepted again"));
    assert_eq!(east.metric("weir_sa_state_kept", ""), 0);
    assert_eq!(west.metric("weir_sa_state_kept", ""), 2);
    drop(east);

    fs::write(&file, good).expect("ours");
    let _east = again(&testbed, Side::East, &said);
    works(&testbed);
    // The same folder for both: one is there already.
    west.kill();
    let shared = format!("state_dir = \"{}\"", file.parent().expect("a folder").display());
    let mut second =
        testbed.west.spawn(&text(Side::West).replace("[ipsec]\n", &format!("[ipsec]\n{shared}\n")), &[]);
    assert!(!second.wait());
    assert!(second.log().contains("another weir uses it"), "{}", second.log());
}

#[test]
fn a_full_disk_is_said_and_forgotten_when_there_is_room_again() {
    let Some((testbed, text)) = gateways("a_full_disk_is_said_and_forgotten_when_there_is_room_again", "")
    else {
        return;
    };
    // In the mount namespace that `ip netns exec` makes: it goes with the process.
    let state = testbed.east.folder.join("state");
    fs::create_dir_all(&state).expect("a folder");
    let mount = format!("mount -t tmpfs -o size=64k,mode=700 weir {} && exec \"$@\"", state.display());
    let east = testbed.east.spawn(&text(Side::East), &["sh", "-c", &mount, "sh"]);
    east.wait_for("is ready");
    let _west = again(&testbed, Side::West, &text(Side::West));
    works(&testbed);
    let inside = PathBuf::from(format!("/proc/{}/root{}", east.pid(), state.display()));
    let filler = inside.join("filler");
    until("the disk is full", || fs::write(&filler, vec![0; 128 << 10]).is_err().then_some(()));
    // The first seconds of an SA have its reservations written every second.
    east.wait_for("cannot be written (No space left on device");
    assert!(east.told(&["show", "status"]).contains("cannot be written"));
    works(&testbed);
    fs::remove_file(&filler).expect("ours");
    east.wait_for("can be written again");
    works(&testbed);
}

#[test]
fn a_disk_that_hangs_is_said_and_forgotten_when_it_answers() {
    let Some((testbed, text)) = gateways("a_disk_that_hangs_is_said_and_forgotten_when_it_answers", "")
    else {
        return;
    };
    let [west, east] = [Side::West, Side::East].map(|side| again(&testbed, side, &text(side)));
    works(&testbed);
    // Whoever opens it to write waits for a reader.
    let image = testbed.east.folder.join("state/sa.state.new");
    let made = || std::process::Command::new("mkfifo").arg(&image).status().expect("coreutils").success();
    until("no image is being written", || made().then_some(()));
    east.wait_for("its disk has not answered for 2 seconds");
    assert!(east.told(&["show", "status"]).contains("its disk has not answered"));
    works(&testbed);
    let reader = fs::File::open(&image).expect("the writer waits");
    fs::remove_file(&image).expect("ours");
    std::io::copy(&mut &reader, &mut std::io::sink()).expect("an image");
    east.wait_for("its disk answers again");
    assert!(!east.told(&["show", "status"]).contains("its disk has not answered"));
    works(&testbed);
    assert!(!west.log().contains("its disk"), "{}", west.log());
}

/// Numbers sent end to end without a break, and which came: any that comes twice was replayed.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    came: Arc<Mutex<Came>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
pub(super) struct Came {
    pub(super) numbers: HashSet<u64>,
    highest: u64,
    pub(super) twice: Vec<u64>,
}

impl Load {
    pub(super) fn start(testbed: &Gateways) -> Load {
        let ends = families()[0];
        let far = testbed.west.in_server(|| UdpSocket::bind((ends.far, 0))).expect("a socket there");
        let here = testbed.west.in_client(|| UdpSocket::bind((ends.client, 0))).expect("a socket here");
        let to = far.local_addr().expect("bound");
        far.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let came = Arc::new(Mutex::new(Came::default()));
        let (stopped, counts) = (stop.clone(), sent.clone());
        let sender = thread::spawn(move || {
            while !stopped.load(Relaxed) {
                // An interface that is down for a moment, like any loss, is the measure here.
                let _ = here.send_to(&(counts.fetch_add(1, Relaxed) + 1).to_be_bytes(), to);
                thread::sleep(Duration::from_micros(200));
            }
        });
        let (stopped, into) = (stop.clone(), came.clone());
        let receiver = thread::spawn(move || {
            let mut number = [0; 8];
            while !stopped.load(Relaxed) {
                let Ok(8) = far.recv(&mut number) else { continue };
                let (number, mut came) = (u64::from_be_bytes(number), into.lock().expect("no panic"));
                came.highest = came.highest.max(number);
                if !came.numbers.insert(number) {
                    came.twice.push(number);
                }
            }
        });
        Load { stop, sent, came, threads: vec![sender, receiver] }
    }

    /// Waits until what is sent from now on arrives.
    pub(super) fn arrives(&self) {
        let from = self.sent.load(Relaxed);
        until("the tunnel carries again", || {
            (self.came.lock().expect("no panic").highest > from).then_some(())
        });
    }

    pub(super) fn end(mut self) -> (u64, Came) {
        self.stop.store(true, Relaxed);
        self.threads.drain(..).for_each(|t| t.join().expect("no panic"));
        (self.sent.load(Relaxed), std::mem::take(&mut self.came.lock().expect("no panic")))
    }
}

/// `WEIR_RESTARTS` makes it a campaign, and has it hold the time a tunnel is away against a second.
#[test]
fn restarts_at_random_moments_under_load_replay_nothing() {
    let Some((testbed, text)) = gateways("restarts_at_random_moments_under_load_replay_nothing", "") else {
        return;
    };
    let campaign = std::env::var("WEIR_RESTARTS").ok().and_then(|n| n.parse::<usize>().ok());
    let [mut west, mut east] = testbed.start(&text);
    let load = Load::start(&testbed);
    load.arrives();
    let (mut ear, mut mouth) =
        (Wire::open(&testbed.east.router, "s0"), Wire::open(&testbed.west.router, "r1"));
    let mut recorded: Vec<Vec<u8>> = Vec::new();
    let (mut replayed, mut away) = (0, Vec::new());
    let mut random = 25_u64;
    for n in 0..campaign.unwrap_or(4) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        for _ in 0..1 + (random >> 33) % 20 {
            thread::sleep(Duration::from_millis(10));
            recorded.extend(esp(ear.heard()));
        }
        let which = n % 3;
        if which != 1 {
            west.kill();
        }
        if which != 0 {
            east.kill();
        }
        let killed = Instant::now();
        if which != 1 {
            west = testbed.west.spawn(&text(Side::West), &[]);
        }
        if which != 0 {
            east = testbed.east.spawn(&text(Side::East), &[]);
        }
        load.arrives();
        away.push(killed.elapsed());
        east.wait_for("is ready");
        west.wait_for("is ready");
        // The last before the kill are the ones a window begun anew would take.
        for frame in recorded.iter().rev().take(64).chain(recorded.iter().step_by(recorded.len() / 64 + 1)) {
            mouth.send(frame);
            replayed += 1;
        }
        let keep = recorded.len().saturating_sub(4096);
        recorded.drain(..keep);
    }
    let (sent, came) = load.end();
    assert_eq!(came.twice, Vec::<u64>::new(), "numbers that came twice");
    assert!(replayed > 64 && came.numbers.len() > 100, "{replayed} replayed, {} came", came.numbers.len());
    until("the last replays are refused", || (refused(&east) > 0).then_some(()));
    if campaign.is_some() {
        away.sort();
        let (middle, most) = (away[away.len() / 2], away[away.len() - 1]);
        println!(
            "{} restarts: {sent} packets sent, {} came, none twice; {replayed} replayed, none came; away {middle:?} in the middle, {most:?} at most",
            away.len(),
            came.numbers.len()
        );
        assert!(most <= Duration::from_secs(1), "the tunnel was away for {most:?}");
    }
}
