//! Linux as a peer: the `ip xfrm` and `ip link` commands that say a [`Case`].

use std::process::{Child, Command, Stdio};
use std::thread;

use weir_core::ipsec::{Encryption, Integrity};
use weir_io::process;

use crate::case::{Case, Mode, Sa, hex};
use crate::testbed::{Family, Testbed, batch, run, until};

/// Which end of the row a kernel plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Left,
    Right,
}

/// A kernel that protects traffic until it is dropped; what keeps a port open for it.
pub struct Kernel {
    ns: String,
    esn: bool,
    encapsulation: Option<Encapsulation>,
}

impl Kernel {
    /// It sealed and opened no fewer packets than these, and found nothing to complain of.
    pub fn assert_carried(&self, least: u64) {
        let states = run(&format!("ip -n {} -s xfrm state", self.ns));
        let counted: Vec<u64> = states
            .lines()
            .filter_map(|line| line.trim().strip_suffix("(packets)")?.rsplit(", ").next()?.parse().ok())
            .collect();
        assert!(
            counted.len() == 2 && counted.iter().all(|&c| c >= least),
            "{counted:?} of {least}:\n{states}"
        );
        assert!(!self.esn || states.contains("oseq-hi 0x1,"), "2^32 was not crossed:\n{states}");
        let errors = run(&format!("ip netns exec {} cat /proc/net/xfrm_stat", self.ns));
        let errors: Vec<&str> = errors.lines().filter(|line| !line.ends_with("\t0")).collect();
        assert!(errors.is_empty(), "the kernel counted {errors:?}\n{states}");
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("the kernel:\n{}", run(&format!("ip -n {} -s xfrm state", self.ns)));
            println!(
                "{}",
                run(&format!("ip netns exec {} cat /proc/net/xfrm_stat /proc/net/snmp6", self.ns))
            );
        }
        // The port is closed before its namespace goes.
        self.encapsulation.take();
    }
}

/// The key of VTI interfaces: packets that pass one carry it as their mark.
const VTI_KEY: u32 = 42;

/// Has the kernel at `end` protect what the case says.
pub fn protect(testbed: &Testbed, end: End, case: &Case) -> Kernel {
    let [there, back] = case.sas();
    let (out, inward) = if end == End::Left { (there, back) } else { (back, there) };
    let gateway = if end == End::Left { &testbed.left } else { &testbed.right };
    let ns = match (case.mode, end) {
        (Mode::Transport, End::Left) => &testbed.a,
        (Mode::Transport, End::Right) => &testbed.b,
        _ => gateway,
    };
    state(ns, case, &out, "replay-oseq 0xffffff00");
    state(ns, case, &inward, "");
    match case.mode {
        Mode::Route => vti(ns, end, case, &out, &inward),
        Mode::Policy | Mode::Transport => policies(ns, end, case, &out, &inward),
    }
    Kernel {
        ns: ns.clone(),
        esn: case.esn,
        encapsulation: case.nat_t.then(|| Encapsulation::open(ns, case.outer)),
    }
}

/// Algorithms as the kernel names them.
fn algorithms(case: &Case, sa: &Sa) -> Vec<String> {
    let words = |text: &[&str]| text.iter().map(ToString::to_string).collect::<Vec<String>>();
    let key = match sa.key.is_empty() {
        true => String::new(),
        false => format!("0x{}", hex(&sa.key)),
    };
    let Some(integrity) = case.suite.integrity() else {
        return match case.suite.encryption() {
            Encryption::ChaCha20Poly1305 => words(&["aead", "rfc7539esp(chacha20,poly1305)", &key, "128"]),
            _ => words(&["aead", "rfc4106(gcm(aes))", &key, "128"]),
        };
    };
    let (hash, bits) = match integrity {
        Integrity::HmacSha1_96 => ("hmac(sha1)", "96"),
        Integrity::HmacSha256_128 => ("hmac(sha256)", "128"),
        Integrity::HmacSha384_192 => ("hmac(sha384)", "192"),
        Integrity::HmacSha512_256 => ("hmac(sha512)", "256"),
    };
    let encryption =
        if case.suite.encryption() == Encryption::Null { "ecb(cipher_null)" } else { "cbc(aes)" };
    let integrity_key = format!("0x{}", hex(&sa.integrity_key));
    words(&["auth-trunc", hash, &integrity_key, bits, "enc", encryption, &key])
}

fn mode_name(case: &Case) -> &'static str {
    if case.mode == Mode::Transport { "transport" } else { "tunnel" }
}

/// `just_before_wrap` has an SA with ESN cross 2^32 soon.
fn state(ns: &str, case: &Case, sa: &Sa, just_before_wrap: &str) {
    let mode = mode_name(case);
    let mut command = format!(
        "-n {ns} xfrm state add src {} dst {} proto esp spi {:#x} reqid 1 mode {mode}",
        sa.source, sa.destination, sa.spi
    );
    command += " replay-window 64";
    if mode == "tunnel" || case.esn {
        command += " flag";
    }
    if mode == "tunnel" {
        // One SA carries both families, whatever its own.
        command += " af-unspec";
    }
    if case.esn {
        command += &format!(" esn {just_before_wrap}");
    }
    let mut words: Vec<String> = command.split_whitespace().map(String::from).collect();
    words.extend(algorithms(case, sa));
    if case.nat_t {
        let unspecified = if case.outer == Family::V4 { "0.0.0.0" } else { "::" };
        words.extend(["encap", "espinudp", "4500", "4500", unspecified].map(String::from));
    }
    let output = Command::new("ip").args(&words).output().expect("ip starts");
    assert!(output.status.success(), "ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
}

fn policies(ns: &str, end: End, case: &Case, out: &Sa, inward: &Sa) {
    let mode = mode_name(case);
    let mut lines = Vec::new();
    for family in case.inner {
        let row = family.row();
        let (near, far) = if end == End::Left { (0, 1) } else { (1, 0) };
        let (near, far) = match case.mode {
            Mode::Transport if end == End::Left => (row.a.to_string(), row.b.to_string()),
            Mode::Transport => (row.b.to_string(), row.a.to_string()),
            _ => (row.nets[near].to_string(), row.nets[far].to_string()),
        };
        for (direction, from, to, sa) in
            [("out", &near, &far, out), ("in", &far, &near, inward), ("fwd", &far, &near, inward)]
        {
            lines.push(format!(
                "xfrm policy add src {from} dst {to} dir {direction} tmpl src {} dst {} proto esp reqid 1 mode {mode}",
                sa.source, sa.destination
            ));
        }
    }
    batch(Some(ns), &lines);
}

/// A tunnel interface, and routes to it.
fn vti(ns: &str, end: End, case: &Case, out: &Sa, inward: &Sa) {
    let kind = if case.outer == Family::V4 { "vti" } else { "vti6" };
    let (local, remote) = (out.source, out.destination);
    let mut lines = vec![
        format!("link add vti0 type {kind} local {local} remote {remote} key {VTI_KEY}"),
        "link set vti0 up mtu 1400".to_string(),
    ];
    for everything in ["0.0.0.0/0", "::/0"] {
        for (direction, sa) in [("out", out), ("in", inward), ("fwd", inward)] {
            lines.push(format!(
                "xfrm policy add src {everything} dst {everything} dir {direction} mark {VTI_KEY} tmpl src {} dst {} proto esp reqid 1 mode tunnel",
                sa.source, sa.destination
            ));
        }
    }
    for family in case.inner {
        let far = family.row().nets[usize::from(end == End::Left)];
        lines.push(format!("route replace {far} dev vti0"));
    }
    batch(Some(ns), &lines);
}

/// A UDP port whose datagrams the kernel takes for ESP (`UDP_ENCAP_ESPINUDP`), as IKE daemons open it.
struct Encapsulation(Child);

impl Encapsulation {
    fn open(ns: &str, family: Family) -> Encapsulation {
        const PROGRAM: &str = "import socket, sys, time\n\
            s = socket.socket(getattr(socket, sys.argv[1]), socket.SOCK_DGRAM)\n\
            s.setsockopt(socket.IPPROTO_UDP, 100, 2)\n\
            s.bind(('', 4500))\n\
            time.sleep(600)\n";
        let family = if family == Family::V4 { "AF_INET" } else { "AF_INET6" };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", ns, "python3", "-c", PROGRAM, family]).stdin(Stdio::null());
        let child = process::dies_with_starter(&mut command).spawn().expect("python3 starts");
        let opened = Encapsulation(child);
        until("port 4500 is open", || {
            run(&format!("ip netns exec {ns} cat /proc/net/udp /proc/net/udp6"))
                .contains(":1194 ")
                .then_some(())
        });
        opened
    }
}

impl Drop for Encapsulation {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
