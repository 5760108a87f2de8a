//! A trace goes through tunnels and policies, and changes nothing.

use crate::common::site::*;
use weir_core::id::PortId;
use weir_core::ipsec::Action;
use weir_core::ipsec::spd::{LookupSpec, PortRange, Selector, Way};
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
        (Verdict::Forward(WAN), "policy-0: protect (rule 1, which is asked first)")
    );
    site.policies = vec![Rule::new(Action::Discard, any())];
    site.publish();
    let t = traced(&site, LAN, &site.lan_frame(0, b"x"));
    assert_eq!(
        (t.verdict, found(&t, "policy out")),
        (Verdict::Drop(Reason::PolicyDiscard), "policy-0: discard (rule 1, which is asked first)")
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
    assert_eq!(found(&t, "policy in"), "policy-0: protect (rule 1, which is asked first)");
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

/// A site whose second rule lets all IPv4 pass, and caches of so many buckets.
fn with_cache(buckets: u32) -> Site {
    let mut site = Site::policy_mode(gcm());
    let never = Selector { protocol: Some(17), destination_ports: PortRange { first: 9, last: 9 }, ..any() };
    site.policies = vec![Rule::new(Action::Discard, never), Rule::new(Action::Bypass, any())];
    site.ask_by(LookupSpec { caches: [Some(buckets); 4], ..LookupSpec::default() });
    site.publish_policies();
    site
}

#[test]
fn trace_says_which_layer_answers_and_what_the_cache_has() {
    let mut site = with_cache(1);
    let sent = site.lan_frame(0, b"x");
    let other = frame(LAN, NEAR[0], FAR[0]).udp(1, 2, b"x");
    let says = |site: &Site| found(&traced(site, LAN, &sent), "policy out").to_string();
    assert_eq!(says(&site), "policy-1: bypass (rule 2, by the ordered scan; the cache has nothing there)");
    site.w.send(LAN, &sent);
    assert_eq!(says(&site), "policy-1: bypass (rule 2, by the flow cache; the ordered scan says the same)");
    let lookups = site.w.router.lookups();
    site.w.send(LAN, &other);
    assert_eq!(
        says(&site),
        "policy-1: bypass (rule 2, by the ordered scan; the cache has another flow there)"
    );
    site.w.send(LAN, &sent);
    site.publish_policies();
    assert_eq!(
        says(&site),
        "policy-1: bypass (rule 2, by the ordered scan; the cache has it by rules that have changed since)"
    );
    assert_eq!(lookups.way(Way::Ipv4Outbound).hit, 0, "a trace asks no cache for real");
}

#[test]
fn trace_of_what_came_in_clear_says_the_same_and_why_it_goes_no_further() {
    let mut site = with_cache(64);
    let back = on_wan(&site.far_packet(0, b"x"));
    let says = |site: &Site| found(&traced(site, WAN, &back), "policy in").to_string();
    site.w.send(WAN, &back);
    assert_eq!(says(&site), "policy-1: bypass (rule 2, by the flow cache; the ordered scan says the same)");
    site.policies[1].action = Action::Discard;
    site.publish_policies();
    site.w.send(WAN, &back);
    let refused = Reason::PolicyDiscard.sentence();
    let expected = "policy-1: discard (rule 2, by the flow cache; the ordered scan says the same)";
    assert_eq!(says(&site), format!("{expected}: {refused}"));
}

#[test]
fn trace_names_a_layer_that_contradicts_the_ordered_scan() {
    let mut site = with_cache(64);
    // The defect: other rules by the same epochs.
    site.epochs = Some([7, 8]);
    site.publish_policies();
    let sent = site.lan_frame(0, b"x");
    site.w.send(LAN, &sent);
    site.policies.truncate(1);
    site.policies.push(Rule::new(Action::Discard, any6()));
    site.publish_policies();
    let t = traced(&site, LAN, &sent);
    assert_eq!(
        found(&t, "policy out"),
        "policy-1: discard (by the flow cache; the ordered scan says no policy matches: discard, which is a \
         defect of weir)"
    );
    assert_eq!(t.verdict, Verdict::Drop(Reason::PolicyDiscard), "the router believes its cache");
    site.lookup.oracle = true;
    site.publish_policies();
    let t = traced(&site, LAN, &sent);
    assert_eq!(t.verdict, Verdict::Drop(Reason::PolicyNone), "or its oracle");
}

#[test]
fn trace_of_many_rules_names_the_classifier_and_the_scan_behind_it() {
    let mut site = with_cache(64);
    let to = |port| Selector {
        protocol: Some(17),
        destination_ports: PortRange { first: port, last: port },
        ..any()
    };
    let rules = (3000..3100).map(|port| Rule::new(Action::Discard, to(port)));
    site.policies.splice(1..1, rules);
    site.publish_policies();
    let sent = site.lan_frame(0, b"x");
    let says = |site: &Site| found(&traced(site, LAN, &sent), "policy out").to_string();
    assert_eq!(
        says(&site),
        "policy-101: bypass (rule 102, by the classifier; the cache has nothing there; the ordered scan says \
         the same)"
    );
    site.w.send(LAN, &sent);
    assert_eq!(
        says(&site),
        "policy-101: bypass (rule 102, by the flow cache; the classifier and the ordered scan say the same)"
    );
}
