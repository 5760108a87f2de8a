//! Tailscale's own probes of a relay: `derpprobe`, of one and of a mesh, and `stunc`.

use super::both;
use super::net::{Net, RELAYS};
use super::peers::{command, path, patiently};
use super::server::{Kind, RelayOptions};
use super::tailnet::map;

both! {
    derpprobe_is_content_with_one_relay: ["derpprobe"];
    stunc_learns_its_address: ["stunc"];
    derpprobe_is_content_with_a_mesh: ["derpprobe", "derper"];
}

const PROBE_FIELDS: [&str; 9] =
    ["Regions", "RegionID", "RegionCode", "RegionName", "Nodes", "Name", "HostName", "IPv4", "DERPPort"];

/// Runs every probe that is for one relay, or for a mesh, once between `relays`: which were good, or what it said of bad ones.
pub fn probe(net: &Net, relays: usize) -> Result<Vec<String>, String> {
    let map = net.file("map.json", &map(relays, PROBE_FIELDS));
    let mut probe = command(net, &net.clients[0], path("derpprobe"));
    probe.arg("--derp-map").arg(format!("file://{}", map.display())).args(["--once", "--spread=false"]);
    if relays == 1 {
        probe.args(["--bw-interval=60s", "--bw-probe-size-bytes=1000000"]);
    } else {
        probe.arg("--mesh-psk-file").arg(net.folder.join("mesh.key"));
    }
    let output = probe.output().expect("derpprobe starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(said);
    }
    let good =
        said.lines().filter_map(|line| line.split_once("good: ")?.1.split(": ").next().map(String::from));
    Ok(good.collect())
}

fn derpprobe_is_content_with_one_relay(kind: Kind) {
    let net = Net::new();
    let _relay = RelayOptions::new(kind).start(&net);
    let good = probe(&net, 1).unwrap_or_else(|said| panic!("{said}"));
    for name in ["tls", "udp", "900-0/mesh", "900-0/bw"] {
        let name = format!("derp/weir/900-0/{name}");
        assert!(good.contains(&name), "{name} is not among {good:?}");
    }
}

fn derpprobe_is_content_with_a_mesh(kind: Kind) {
    let net = Net::new();
    let relays = [
        RelayOptions::new(kind).mesh().start(&net),
        RelayOptions::new(Kind::Derper).second().mesh().start(&net),
    ];
    // They may not have found each other yet.
    let good = patiently("derpprobe is content", || {
        probe(&net, 2).inspect_err(|said| println!("derpprobe says:\n{said}")).ok()
    });
    for from in ["900-0", "900-1"] {
        for to in ["900-0", "900-1"] {
            let name = format!("derp/weir/{from}/{to}/mesh");
            assert!(good.contains(&name), "{name} is not among {good:?}\n{}", relays[0].log());
        }
    }
}

fn stunc_learns_its_address(kind: Kind) {
    let net = Net::new();
    let _relay = RelayOptions::new(kind).start(&net);
    patiently("stunc is answered", || {
        let output =
            command(&net, &net.clients[1], path("stunc")).arg(RELAYS[0]).output().expect("stunc starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let own = said.lines().any(|line| line.starts_with("stun addr: 10.2.0.2:"));
        (output.status.success() && own).then_some(())
    });
}
