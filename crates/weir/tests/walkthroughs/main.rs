//! The pages of docs/walk-throughs are followed as their readers follow them: each command is typed in its turn, and
//! what it prints is what the page says. One page is followed by the lab's tests, whose program it needs.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_testing::shell;

/// Pages followed here.
const HERE: [&str; 5] = ["accelerate.md", "firewall.md", "ipsec.md", "relay.md", "route.md"];
/// Pages followed in crates/weir-lab/tests/lab/walkthroughs.rs.
const BY_THE_LAB: [&str; 1] = ["experiment.md"];
/// Pages followed in crates/weir/tests/interop/walkthrough.rs, which have a kernel with ESP.
const IN_THE_SECOND_KERNEL: [&str; 1] = ["gateways.md"];

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/walk-throughs")
}

fn programs() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_weir")).parent().expect("a file has a folder")
}

/// Follows a page, unless something is missing.
fn follow(test: &str, page: &str, missing: Option<String>) {
    assert!(HERE.contains(&page), "{page} is not in the list");
    if let Some(missing) = shell::missing().or(missing) {
        writeln!(std::io::stderr(), "SKIP {test}: needs {missing}").expect("stderr is open");
        return;
    }
    let text = std::fs::read_to_string(docs().join(page)).expect("the page is in the tree");
    shell::follow(&text, programs(), shell::PATIENCE)
        .unwrap_or_else(|why| panic!("docs/walk-throughs/{page}, {why}"));
}

#[test]
fn a_router_between_two_namespaces_is_as_the_page_says() {
    let missing = shell::absent(&["iperf3", "ethtool"]);
    follow("a_router_between_two_namespaces_is_as_the_page_says", "route.md", missing);
}

#[test]
fn a_router_that_speaks_bgp_is_accelerated_as_the_page_says() {
    let frr = Path::new("/usr/lib/frr/bgpd").exists();
    let missing = (!frr).then(|| "FRR; `make setup` installs it".to_string());
    let missing = missing.or_else(|| shell::absent(&["ethtool", "bird", "birdc"]));
    follow("a_router_that_speaks_bgp_is_accelerated_as_the_page_says", "accelerate.md", missing);
}

#[test]
fn a_router_with_a_firewall_is_faster_and_obeys_it_as_the_page_says() {
    let missing = shell::absent(&["nft", "iperf3", "ethtool", "ss"]);
    follow("a_router_with_a_firewall_is_faster_and_obeys_it_as_the_page_says", "firewall.md", missing);
}

#[test]
fn a_tunnel_between_two_namespaces_is_as_the_page_says() {
    let test = "a_tunnel_between_two_namespaces_is_as_the_page_says";
    let tun = Path::new("/dev/net/tun").exists();
    let missing = (!tun).then(|| "/dev/net/tun".to_string()).or_else(|| shell::absent(&["iperf3"]));
    follow(test, "ipsec.md", missing);
}

#[test]
fn two_clients_of_a_relay_meet_as_the_page_says() {
    let tun = Path::new("/dev/net/tun").exists();
    let missing = (!tun).then(|| "/dev/net/tun".to_string()).or_else(peers_missing);
    follow("two_clients_of_a_relay_meet_as_the_page_says", "relay.md", missing);
}

/// What of the page's peers is not there.
fn peers_missing() -> Option<String> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    let absent = ["headscale", "tailscale", "tailscaled"]
        .into_iter()
        .find(|peer| !cache.join("weir/peers/bin").join(peer).is_file())?;
    Some(format!("{absent}; `scripts/peers` installs it"))
}

#[test]
fn every_page_is_followed_and_listed() {
    let mut pages: Vec<String> = std::fs::read_dir(docs())
        .expect("the folder is in the tree")
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
        .filter(|name| name != "README.md")
        .collect();
    pages.sort();
    let mut followed: Vec<&str> = HERE.into_iter().chain(BY_THE_LAB).chain(IN_THE_SECOND_KERNEL).collect();
    followed.sort_unstable();
    assert_eq!(pages, followed);
    let list = std::fs::read_to_string(docs().join("README.md")).expect("the list is in the tree");
    for page in pages {
        assert!(list.contains(&format!("]({page})")), "README.md does not lead to {page}");
    }
}

/// What following a page comes to; `None` where no page can be followed.
fn followed(test: &str, page: &str, patience: Duration) -> Option<Result<(), String>> {
    if let Some(missing) = shell::missing() {
        writeln!(std::io::stderr(), "SKIP {test}: needs {missing}").expect("stderr is open");
        return None;
    }
    Some(shell::follow(page, programs(), patience))
}

#[test]
fn a_page_that_says_otherwise_than_the_programs_fails() {
    let test = "a_page_that_says_otherwise_than_the_programs_fails";
    for (page, why) in [
        ("```sh\nfalse\necho on\n```\n", "a command failed"),
        ("```sh\nset -u; echo $nothing\n```\n", "a command failed"),
        ("```sh\nexit 0\n```\n", "a command failed"),
        ("```sh\nip netns add left\n```\n", "left"),
        ("```sh\nsleep 1000 &\n```\n", "sleep 1000"),
        ("```sh\ntouch file\n```\n", "file"),
        ("```sh\necho 1\n```\n```text\n2\n```\n", "expected\n2\n\ngot\n1\n"),
    ] {
        let Some(followed) = followed(test, page, Duration::from_secs(1)) else { return };
        let refusal = followed.expect_err(page);
        assert!(refusal.contains(why), "{page}: {refusal}");
    }
}

#[test]
fn a_page_is_one_shell_and_waits_for_what_it_says() {
    let page = "```sh\nnumber=7\n(sleep 0.3; echo ready) &\n```\n```text\nready\n```\n\
                ```sh\nmkdir a && cd a\necho $number; weir --version\n```\n```text\n7\nweir …\n```\n\
                ```sh\ncd .. && rmdir a\n```\n";
    let test = "a_page_is_one_shell_and_waits_for_what_it_says";
    if let Some(followed) = followed(test, page, shell::PATIENCE) {
        assert_eq!(followed, Ok(()));
    }
}
