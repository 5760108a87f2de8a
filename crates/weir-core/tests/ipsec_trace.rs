//! A trace goes through tunnels and policies, and changes nothing.

#[path = "common/sas.rs"]
mod sas;
#[path = "common/site.rs"]
mod site;
#[path = "common/world.rs"]
mod world;

use site::*;
use weir_core::ipsec::Action;
use weir_core::tables::PortId;
use weir_core::trace::{Trace, trace};
use weir_core::verdict::{Reason, Verdict};
use weir_core::wire::flow::FlowKey;

fn traced(site: &Site, port: PortId, bytes: &[u8]) -> Trace {
    let device = site.w.tables.ports[port.index()].device;
    trace(&site.w.tables, &FlowKey::new(0), device, bytes)
}

fn found<'a>(trace: &'a Trace, stage: &str) -> &'a str {
    let step = trace.steps.iter().find(|step| step.stage == stage);
    step.map_or_else(|| panic!("no step {stage} in\n{trace}"), |step| &step.found)
}

#[test]
fn packet_into_a_tunnel_names_tunnel_sa_sizes_and_outer_route() {
    let site = Site::route_mode(gcm());
    let t = traced(&site, LAN, &site.lan_frame(0, &[1; 100]));
    assert_eq!(t.verdict, Verdict::Forward(WAN));
    assert_eq!(found(&t, "tunnel"), "sa sa-1");
    // 128 and two of trailer are 130, padded to 132; 20 + 8 + 8 + 16 around them.
    assert_eq!(found(&t, "seal"), "184 bytes to 192.0.2.2");
    assert_eq!(found(&t, "outer route"), "via 192.0.2.2 on wan");
}

#[test]
fn packet_by_policy_names_the_policy() {
    let mut site = Site::policy_mode(gcm());
    let t = traced(&site, LAN, &site.lan_frame(0, b"x"));
    assert_eq!(
        (t.verdict, found(&t, "policy out")),
        (Verdict::Forward(WAN), "policy-0: protect (by the first rule)")
    );
    site.policies = vec![Rule::new(Action::Discard, any())];
    site.publish();
    let t = traced(&site, LAN, &site.lan_frame(0, b"x"));
    assert_eq!(
        (t.verdict, found(&t, "policy out")),
        (Verdict::Drop(Reason::PolicyDiscard), "policy-0: discard (by the first rule)")
    );
    site.policies.clear();
    site.publish();
    let t = traced(&site, WAN, &on_wan(&site.far_packet(0, b"x")));
    assert_eq!(t.verdict, Verdict::Drop(Reason::PolicyNone));
}

#[test]
fn sealed_packet_is_opened_and_followed_to_its_port() {
    let site = Site::policy_mode(gcm());
    let t = traced(&site, WAN, &site.sealed(&site.far_packet(0, &[1; 100])));
    assert_eq!(t.verdict, Verdict::Forward(LAN), "{t}");
    assert_eq!(found(&t, "sa"), "sa-2");
    assert_eq!(found(&t, "replay"), "new");
    assert_eq!(found(&t, "open"), "authentic: 128 bytes inside");
    assert_eq!(found(&t, "policy in"), "policy-0: protect (by the first rule)");
}

#[test]
fn trace_touches_no_state() {
    let mut site = Site::policy_mode(gcm());
    let sealed = site.sealed(&site.far_packet(0, b"once"));
    let sent = site.lan_frame(0, b"once");
    for _ in 0..3 {
        assert_eq!(traced(&site, WAN, &sealed).verdict, Verdict::Forward(LAN));
        assert_eq!(traced(&site, LAN, &sent).verdict, Verdict::Forward(WAN));
    }
    assert_eq!(site.out.here.state.sequence.load(std::sync::atomic::Ordering::Relaxed), 0);
    assert_eq!(site.w.send(WAN, &sealed).forwarded, 1);
    let t = traced(&site, WAN, &sealed);
    assert_eq!(t.verdict, Verdict::Drop(Reason::Replayed));
    assert_eq!(found(&t, "replay"), Reason::Replayed.sentence());
}

#[test]
fn corrupted_packet_and_unknown_sa_are_told_apart() {
    let site = Site::route_mode(gcm());
    let mut sealed = site.sealed(&site.far_packet(0, b"x"));
    let last = sealed.len() - 1;
    sealed[last] ^= 1;
    assert_eq!(traced(&site, WAN, &sealed).verdict, Verdict::Drop(Reason::IntegrityFailed));
    sealed[14 + 20] ^= 1;
    let t = traced(&site, WAN, &sealed);
    assert_eq!((t.verdict, found(&t, "sa")), (Verdict::Local, "no SA of ours"));
}
