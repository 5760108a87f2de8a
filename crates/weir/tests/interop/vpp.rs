//! VPP as a peer: one process in the right gateway's namespace, and the commands that say a [`Case`] to it.
//!
//! It takes both devices of the gateway by AF_PACKET, and the addresses with them: the kernel keeps none. Its files are in the
//! testbed's folder. Its exit codes say nothing, and what a file of commands answers goes to its own output, so that is
//! read, and complaints in it fail the test.

use std::fmt::Write as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

use weir_core::ipsec::{Encryption, Integrity};
use weir_io::process;

use crate::case::{Case, Mode, Sa, hex};
use crate::testbed::{Family, Testbed, run, until};

/// How its command line says that it did not do as it was told.
const COMPLAINTS: [&str; 6] = ["unknown", "error", "failed", "invalid", "not supported", "no such"];
/// vppctl waits for ever.
const ANSWERS_WITHIN_S: &str = "30";
/// Ids of its two SAs.
const OUT: u32 = 1;
const IN: u32 = 2;

/// Where the project keeps it, or on the PATH.
fn program(name: &str) -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let kept = cache.map(|cache| cache.join("weir/peers/bin"));
    kept.into_iter().chain(std::env::split_paths(&path)).map(|d| d.join(name)).find(|p| p.is_file())
}

/// What is missing to run it.
pub fn missing() -> Option<String> {
    (program("vpp").is_none() || program("vppctl").is_none())
        .then(|| "vpp and vppctl; `scripts/peers vpp --source DIR` builds them".into())
}

/// A running VPP, killed on drop.
pub struct Vpp {
    child: Child,
    folder: PathBuf,
}

impl Vpp {
    /// Takes the right gateway from the kernel and has VPP protect what the case says.
    pub fn start(testbed: &Testbed, case: &Case) -> Vpp {
        let ns = &testbed.right;
        for device in ["r1", "r0"] {
            run(&format!("ip -n {ns} addr flush dev {device}"));
        }
        let no = ["net.ipv4.ip_forward=0", "net.ipv6.conf.all.disable_ipv6=1"];
        run(&format!("ip netns exec {ns} sysctl -q -w {}", no.join(" ")));
        let folder = testbed.folder.join("vpp");
        // of the case before
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        let settings = testbed.file("vpp/startup.conf", &settings(&folder.display().to_string()));
        let log = std::fs::File::create(folder.join("log")).expect("a file");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", ns, "stdbuf", "-oL"]).arg(program("vpp").expect("it is there"));
        command.arg("-c").arg(settings).stdin(Stdio::null());
        command.stderr(log.try_clone().expect("a file")).stdout(log);
        let child = process::dies_with_starter(&mut command).spawn().expect("vpp starts");
        let mut vpp = Vpp { child, folder };
        let socket = vpp.folder.join("cli.sock");
        until("vpp listens", || {
            let ended = vpp.child.try_wait().expect("a child of ours");
            assert!(ended.is_none(), "vpp ended:\n{}", vpp.log());
            // the file is there before anyone listens
            UnixStream::connect(&socket).is_ok().then_some(())
        });
        let said = vpp.does(&commands(ns, case));
        let complains = COMPLAINTS.iter().any(|word| said.to_lowercase().contains(word));
        assert!(!complains, "vpp says:\n{said}\nto\n{}", commands(ns, case));
        vpp
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Has it do commands, in one turn of its main loop; what they answer.
    fn does(&self, commands: &str) -> String {
        let file = self.folder.join("commands");
        std::fs::write(&file, commands).expect("a file");
        let before = self.log().len();
        let mut ctl = Command::new("timeout");
        ctl.arg(ANSWERS_WITHIN_S).arg(program("vppctl").expect("it is there"));
        ctl.arg("-s").arg(self.folder.join("cli.sock")).arg("exec").arg(file).stdin(Stdio::null());
        let output = ctl.output().expect("vppctl starts");
        assert!(output.status.success(), "vppctl: {output:?}\n{}", self.log());
        self.log()[before..].to_string() + &String::from_utf8_lossy(&output.stdout)
    }

    /// Both its SAs carried no fewer packets than these, and it found nothing to complain of.
    pub fn assert_carried(&self, least: u64) {
        let said = self.does("show ipsec sa detail\n");
        let counted = packets(&said, |line| line.starts_with("tx/rx:"));
        assert!(counted.len() == 2 && counted.iter().all(|&c| c >= least), "{counted:?} of {least}:\n{said}");
        let errors = packets(&said, |line| line.starts_with('"'));
        assert!(!errors.is_empty() && errors.iter().all(|&c| c == 0), "vpp counted errors:\n{said}");
    }
}

/// The packets that each such line counts, `tx/rx:[packets:0 bytes:0]` one of them.
fn packets(said: &str, of: impl Fn(&str) -> bool) -> Vec<u64> {
    let number = |line: &str| {
        let rest = line.split_once("[packets:")?.1;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    said.lines().map(str::trim).filter(|line| of(line)).filter_map(number).collect()
}

impl Drop for Vpp {
    fn drop(&mut self) {
        if thread::panicking() {
            println!(
                "vpp:\n{}",
                self.does("show ipsec sa detail\nshow errors\nshow interface\nshow ip neighbors\n")
            );
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn settings(folder: &str) -> String {
    format!(
        "unix {{\n  nodaemon\n  runtime-dir {folder}\n  cli-listen {folder}/cli.sock\n  log {folder}/vpp.log\n}}\n\
         api-segment {{\n  prefix weir-{}\n}}\nsocksvr {{\n  socket-name {folder}/api.sock\n}}\n\
         statseg {{\n  socket-name {folder}/stats.sock\n}}\n\
         memory {{\n  main-heap-size 256M\n  main-heap-page-size default\n}}\n\
         buffers {{\n  page-size default\n  buffers-per-numa 4096\n}}\nplugins {{\n  plugin default {{ disable }}\n  \
         plugin af_packet_plugin.so {{ enable }}\n  plugin ipip_plugin.so {{ enable }}\n  \
         plugin crypto_native_plugin.so {{ enable }}\n  plugin crypto_ipsecmb_plugin.so {{ enable }}\n  \
         plugin crypto_openssl_plugin.so {{ enable }}\n}}\n",
        std::process::id()
    )
}

/// The link-layer address of a device of the namespace.
fn link_address(ns: &str, device: &str) -> String {
    let said = run(&format!("ip -n {ns} -o link show dev {device}"));
    let address = said.split("link/ether ").nth(1).and_then(|rest| rest.split_whitespace().next());
    address.unwrap_or_else(|| panic!("{device} has no address: {said}")).to_string()
}

/// Ports, SAs, and what leads packets to them.
fn commands(ns: &str, case: &Case) -> String {
    let mut text = String::new();
    for (device, addresses) in
        [("r1", ["192.0.2.2/24", "2001:db8::2/64"]), ("r0", ["10.2.0.1/24", "fd02::1/64"])]
    {
        let mac = link_address(ns, device);
        // The wires' checksums are finished: without the last word it would still have the kernel expect a header of offloads.
        let _ = writeln!(text, "create host-interface name {device} hw-addr {mac} cksum-gso-disable");
        let _ = writeln!(text, "set interface state host-{device} up");
        for address in addresses {
            let _ = writeln!(text, "set interface ip address host-{device} {address}");
        }
    }
    let [inward, out] = case.sas();
    match case.mode {
        Mode::Route => route(&mut text, case, &out, &inward),
        _ => policies(&mut text, case, &out, &inward),
    }
    text
}

fn route(text: &mut String, case: &Case, out: &Sa, inward: &Sa) {
    let _ = writeln!(text, "{}", sa(OUT, out, case));
    let _ = writeln!(text, "{} inbound use-anti-replay", sa(IN, inward, case));
    let _ = writeln!(text, "create ipip tunnel src {} dst {}", out.source, out.destination);
    let _ = writeln!(text, "ipsec tunnel protect ipip0 sa-in {IN} sa-out {OUT}");
    let _ = writeln!(text, "set interface state ipip0 up\nset interface unnumbered ipip0 use host-r1");
    for family in case.inner {
        let _ = writeln!(text, "ip route add {} via ipip0", family.row().nets[0]);
    }
}

/// ESP itself passes both ways; what is between the two networks is protected.
fn policies(text: &mut String, case: &Case, out: &Sa, inward: &Sa) {
    let ends = |sa: &Sa| format!("tunnel src {} dst {}", sa.source, sa.destination);
    let _ = writeln!(text, "{} {}", sa(OUT, out, case), ends(out));
    let _ = writeln!(text, "{} inbound use-anti-replay {}", sa(IN, inward, case), ends(inward));
    let _ = writeln!(text, "ipsec spd add 1\nset interface ipsec spd host-r1 1");
    let ip6 = if case.outer == Family::V6 { "ip6 " } else { "" };
    for way in ["inbound", "outbound"] {
        let _ = writeln!(text, "ipsec policy add spd 1 {ip6}priority 100 {way} action bypass protocol 50");
    }
    for family in case.inner {
        let row = family.row();
        let _ = writeln!(text, "ip route add {} via {} host-r1", row.nets[0], row.left);
        let (local, remote) = (row.b, row.a);
        let hosts = format!("local-ip-range {local} - {local} remote-ip-range {remote} - {remote}");
        for (way, id) in [("outbound", OUT), ("inbound", IN)] {
            let ip6 = if *family == Family::V6 { "ip6 " } else { "" };
            let _ = writeln!(
                text,
                "ipsec policy add spd 1 {ip6}priority 10 {way} action protect sa {id} {}",
                hosts
            );
        }
    }
}

/// An SA in its words.
fn sa(id: u32, sa: &Sa, case: &Case) -> String {
    let encryption = case.suite.encryption();
    let name = if encryption == Encryption::Null { "none" } else { encryption.name() };
    let (key, salt) = sa.key.split_at(encryption.key_len());
    let mut text = format!("ipsec sa add {id} spi {} esp crypto-alg {name}", sa.spi);
    for (what, bytes) in [("crypto-key ", key), ("salt 0x", salt)] {
        if !bytes.is_empty() {
            let _ = write!(text, " {what}{}", hex(bytes));
        }
    }
    if let Some(integrity) = case.suite.integrity() {
        let _ = write!(text, " integ-alg {} integ-key {}", spelt(integrity), hex(&sa.integrity_key));
    }
    if case.esn {
        text += " use-esn";
    }
    text
}

fn spelt(integrity: Integrity) -> String {
    integrity.name().trim_start_matches("hmac-").replace("sha2-", "sha-")
}
