//! `weir relay map`: the relay of a configuration file as an entry of a DERP map, for Tailscale's policy file or for headscale.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use weir_relay::settings::{Acceptor, Certificates, Tls};

use crate::config;
use crate::failure::Failure;

/// The port of clients that a node of a map has when it names none.
const DERP_PORT: u16 = 443;
/// What a map says of a node that does not answer STUN.
const NO_STUN: i32 = -1;

#[derive(Clone, Debug, Args)]
pub struct MapArgs {
    /// The relay's configuration file
    file: PathBuf,
    /// JSON for `derpMap` of Tailscale's policy file
    #[arg(long, required_unless_present = "headscale", conflicts_with = "headscale")]
    tailscale: bool,
    /// YAML for a file that `derp.paths` of headscale names
    #[arg(long)]
    headscale: bool,
    /// Number of the region; Tailscale leaves 900 to 999 to its users
    #[arg(long, default_value_t = 900, value_parser = clap::value_parser!(u16).range(1..))]
    region: u16,
    /// Name of the region, as clients show it [default: the host name]
    #[arg(long)]
    name: Option<String>,
    /// Host name of the relay, where the file has no `hostname`
    #[arg(long)]
    hostname: Option<String>,
}

/// A relay as clients have to reach it.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    region: u16,
    name: String,
    hostname: String,
    derp_port: u16,
    /// [`NO_STUN`] where it does not answer STUN.
    stun_port: i32,
    /// Captive portal checks are answered on port 80.
    port80: bool,
}

/// The entry, and sentences about what a map cannot say.
pub fn text(args: &MapArgs) -> Result<(String, Vec<&'static str>), Failure> {
    let config = config::check(&args.file).map_err(Failure::of)?;
    let Some(relay) = &config.relay else {
        return Err(Failure(format!("{}: has no `[relay]`; name a relay's file", args.file.display())));
    };
    let node = Node::of(args, &relay.acceptor)?;
    let text = if args.tailscale { format!("{:#}\n", node.tailscale()) } else { node.headscale() };
    Ok((text, notes(&relay.acceptor)))
}

impl Node {
    fn of(args: &MapArgs, acceptor: &Acceptor) -> Result<Node, Failure> {
        let hostname = args.hostname.clone().or_else(|| acceptor.hostname.clone());
        let hostname = hostname.ok_or_else(|| no_hostname(&args.file))?;
        Ok(Node {
            region: args.region,
            name: args.name.clone().unwrap_or_else(|| hostname.clone()),
            hostname,
            derp_port: acceptor.listen.first().map_or(DERP_PORT, |at| at.port()),
            stun_port: acceptor.stun.first().map_or(NO_STUN, |at| at.port().into()),
            port80: acceptor.http.iter().any(|at| at.port() == 80),
        })
    }

    /// A short name: a region's code and its node's name have no dots.
    fn code(&self) -> String {
        format!("weir-{}", self.region)
    }

    fn tailscale(&self) -> Value {
        let node = json!({
            "Name": format!("{}a", self.region),
            "RegionID": self.region,
            "HostName": self.hostname,
            "DERPPort": self.derp_port,
            "STUNPort": self.stun_port,
            "CanPort80": self.port80,
        });
        let region = json!({
            "RegionID": self.region,
            "RegionCode": self.code(),
            "RegionName": self.name,
            "Nodes": [node],
        });
        json!({ "derpMap": { "Regions": { self.region.to_string(): region } } })
    }

    /// Texts are written as JSON has them, which YAML reads.
    fn headscale(&self) -> String {
        let (region, code) = (self.region, self.code());
        let (name, hostname) = (json!(self.name), json!(self.hostname));
        format!(
            "regions:\n  {region}:\n    regionid: {region}\n    regioncode: {code}\n    regionname: {name}\n    nodes:\n      \
             - name: {region}a\n        regionid: {region}\n        hostname: {hostname}\n        derpport: {}\n        \
             stunport: {}\n        stunonly: false\n        canport80: {}\n",
            self.derp_port, self.stun_port, self.port80
        )
    }
}

fn no_hostname(file: &Path) -> Failure {
    Failure(format!(
        "{}: `[relay]` has no `hostname`, and clients need one; write `hostname = \"derp.example.com\"` there, or give --hostname",
        file.display()
    ))
}

fn notes(acceptor: &Acceptor) -> Vec<&'static str> {
    let mut notes = Vec::new();
    if acceptor.tls == Tls::Off {
        notes.push("tls is off: clients reach the proxy before the relay; write the proxy's port in place of this one");
    } else if matches!(acceptor.certificates, Certificates::SelfSigned) {
        notes.push(
            "the certificate is self-signed and new with each start: clients need its sum as CertName, which the log says",
        );
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(flags: &[&str], file: &Path) -> MapArgs {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: MapArgs,
        }
        let line = ["map".as_ref(), file.as_os_str()].into_iter().chain(flags.iter().map(|f| f.as_ref()));
        <Line as clap::Parser>::parse_from(line).args
    }

    fn file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("weir-map-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text).expect("a file can be written");
        path
    }

    fn of(name: &str, text_of_file: &str, flags: &[&str]) -> Result<(String, Vec<&'static str>), Failure> {
        let path = file(name, text_of_file);
        let said = text(&args(flags, &path));
        std::fs::remove_file(path).expect("it was written");
        said
    }

    const RELAY: &str = "[relay]\nlisten = \":8443\"\nhttp = \":80\"\nstun = \":3479\"\nhostname = \"derp.example.com\"\ncertificates = \"self-signed\"\n";

    #[test]
    fn both_maps_name_host_and_ports_of_the_file() {
        let (json, notes) = of("json", RELAY, &["--tailscale", "--region", "901"]).expect("a map");
        let map: Value = serde_json::from_str(&json).expect("JSON");
        let node = &map["derpMap"]["Regions"]["901"]["Nodes"][0];
        assert_eq!(node["HostName"], "derp.example.com");
        assert_eq!((&node["DERPPort"], &node["STUNPort"]), (&json!(8443), &json!(3479)));
        assert_eq!(node["CanPort80"], true);
        assert_eq!(notes.len(), 1, "a self-signed certificate is told");
        let (yaml, _) = of("yaml", RELAY, &["--headscale"]).expect("a map");
        for line in [
            "  900:",
            "        hostname: \"derp.example.com\"",
            "        derpport: 8443",
            "        stunport: 3479",
        ] {
            assert!(yaml.lines().any(|l| l == line), "{line:?} in\n{yaml}");
        }
    }

    #[test]
    fn a_relay_without_stun_says_so() {
        let text = RELAY.replace("stun = \":3479\"\n", "").replace("http = \":80\"\n", "");
        let (json, _) = of("stun", &text, &["--tailscale"]).expect("a map");
        let map: Value = serde_json::from_str(&json).expect("JSON");
        let node = &map["derpMap"]["Regions"]["900"]["Nodes"][0];
        assert_eq!((&node["STUNPort"], &node["CanPort80"]), (&json!(-1), &json!(false)));
    }

    #[test]
    fn what_is_missing_is_said_with_its_remedy() {
        let nameless = RELAY.replace("hostname = \"derp.example.com\"\n", "");
        let said = of("nameless", &nameless, &["--tailscale"]).expect_err("no name").0;
        assert!(said.contains("--hostname"), "{said}");
        let (yaml, _) =
            of("named", &nameless, &["--headscale", "--hostname", "d.example.net"]).expect("a map");
        assert!(yaml.contains("hostname: \"d.example.net\""), "{yaml}");
        let router = "[[port]]\nname = \"lan\"\ndevice = \"eth0\"\n";
        assert!(of("router", router, &["--tailscale"]).expect_err("a router's").0.contains("[relay]"));
    }
}
