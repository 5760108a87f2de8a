//! A running `weir` as the left gateway: its configuration for a [`Case`], and what it says of itself.

use std::ops::Deref;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use weir::testing::machine::until_within;

use crate::case::{Case, Mode, Sa, hex};
use crate::daemon::Running;
use crate::testbed::{Family, LEFT_LAN, LEFT_WAN, PATIENCE, Testbed, run, until};

/// Killed on drop; what it logged is shown when a test fails.
pub struct Weir(Running);

impl Deref for Weir {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.0
    }
}

/// Both ports and the routes that need no tunnel.
pub fn router_config() -> String {
    let port = |name: &str, device: &str, addresses: [&str; 2]| {
        format!(
            "[[port]]\nname = \"{name}\"\ndevice = \"{device}\"\nkind = \"af_packet\"\naddresses = {addresses:?}\n"
        )
    };
    port("lan", "l0", LEFT_LAN) + &port("wan", "l1", LEFT_WAN)
}

/// Routes to the far prefixes by the other gateway.
pub fn plain_routes() -> String {
    routes(&[Family::V4, Family::V6], |family| format!("\"{}\"", family.row().right))
}

fn routes(families: &[Family], via: impl Fn(Family) -> String) -> String {
    let route = |&f: &Family| format!("[[route]]\nprefix = \"{}\"\nvia = {}\n", f.row().nets[1], via(f));
    families.iter().map(route).collect()
}

/// The whole configuration for a case and its SAs, there and back; their keys are a file of the testbed.
pub fn gateway_config(testbed: &Testbed, case: &Case, [out, inward]: &[Sa; 2]) -> String {
    let keys: String = [("out", out), ("in", inward)]
        .into_iter()
        .flat_map(|(name, sa)| {
            [(name.to_string(), &sa.key), (format!("{name}-integrity"), &sa.integrity_key)]
        })
        .filter(|(_, key)| !key.is_empty())
        .map(|(name, key)| format!("{name} = \"{}\"\n", hex(key)))
        .collect();
    let keys = testbed.file("gateway.keys", &keys);
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).expect("our file");
    let mut config = router_config() + "[ipsec]\nkeys = \"gateway.keys\"\n";
    config += &sa_config(case, "out", out);
    config += &sa_config(case, "in", inward);
    if case.mode == Mode::Route {
        config += "[[tunnel]]\nname = \"east\"\nout = \"out\"\nin = \"in\"\nmtu = 1400\n";
        return config + &routes(case.inner, |_| "{ port = \"east\" }".to_string());
    }
    config += "[[spd]]\nname = \"outside\"\nports = [\"wan\"]\ndefault = \"drop\"\n";
    for family in case.inner {
        let row = family.row();
        let (local, remote) = match case.mode {
            Mode::Transport => (row.a.to_string(), row.b.to_string()),
            _ => (row.nets[0].to_string(), row.nets[1].to_string()),
        };
        config += &format!(
            "[[policy]]\nspd = \"outside\"\nname = \"{family:?}\"\nlocal = \"{local}\"\nremote = \"{remote}\"\n\
             action = \"protect\"\nout = \"out\"\nin = \"in\"\n"
        );
    }
    config + &plain_routes()
}

fn sa_config(case: &Case, direction: &str, sa: &Sa) -> String {
    let mode = if case.mode == Mode::Transport { "transport" } else { "tunnel" };
    let suite = case.suite;
    let mut text = format!(
        "[[sa]]\nname = \"{direction}\"\ndirection = \"{direction}\"\nspi = {}\nmode = \"{mode}\"\n\
         source = \"{}\"\ndestination = \"{}\"\ncipher = \"{}\"\nesn = {}\nreplay_window = 64\nnat_t = {}\n",
        sa.spi,
        sa.source,
        sa.destination,
        suite.encryption().name(),
        case.esn,
        case.nat_t
    );
    if !sa.key.is_empty() {
        text += &format!("key = \"{direction}\"\n");
    }
    if let Some(integrity) = suite.integrity() {
        text += &format!("integrity = \"{}\"\nintegrity_key = \"{direction}-integrity\"\n", integrity.name());
    }
    text
}

impl Weir {
    /// Starts it in the left gateway's namespace and waits until it is ready.
    pub fn start(testbed: &Testbed, config: &str) -> Weir {
        // Of its own: the peer of the next case counts from 1 again.
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let state = format!("state-{}", STARTED.fetch_add(1, Ordering::Relaxed));
        Weir::start_with(testbed, config, &state)
    }

    /// The same with a state directory of this name.
    pub fn start_with(testbed: &Testbed, config: &str, state: &str) -> Weir {
        let path = testbed.file("gateway.toml", config);
        let socket = testbed.folder.join("control.sock");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &testbed.left, env!("CARGO_BIN_EXE_weir"), "--socket"]);
        command.arg(&socket).arg("run").arg(&path);
        command.env("STATE_DIRECTORY", testbed.folder.join(state));
        let mut weir = Weir(Running::start(&mut command, socket));
        // A debug build on emulated processors reads a hundred SAs in half a minute.
        until_within(PATIENCE * 3, "weir is ready", || {
            let ended = weir.0.child.try_wait().expect("a child of ours");
            assert!(ended.is_none(), "weir ended:\n{}", weir.log());
            weir.log().contains("is ready").then_some(())
        });
        weir
    }

    /// Ends it in order.
    pub fn stop(&mut self) {
        run(&format!("kill -TERM {}", self.0.child.id()));
        assert!(self.0.child.wait().expect("a child of ours").success(), "{}", self.log());
    }

    /// The sum of a metric over all its labels that contain `label`.
    pub fn metric(&self, name: &str, label: &str) -> i64 {
        self.values(name, label).iter().sum()
    }

    /// Every frame is accounted for, at one moment without traffic, and none was lost by our fault.
    pub fn assert_conserved(&self) {
        until("workers rest and their books balance", || {
            let received = self.metric("weir_frames_received_total", "");
            (received > 0 && self.balances()).then_some(())
        });
        let ours = self.metric("weir_drops_total", "blame=\"weir\"");
        assert_eq!(ours, 0, "{}", self.told(&["show", "drops"]));
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        if thread::panicking() {
            for topic in ["drops", "ports", "sa", "spd"] {
                println!("{topic}:\n{}", String::from_utf8_lossy(&self.ask(&["show", topic]).stdout));
            }
            println!("weir said:\n{}", self.log());
        }
    }
}
