//! `weir show sa`, `spd` and `tunnels` as tables.

use super::{Shown, duration, table};
use crate::view;

/// `chosen`: some of them were asked for.
pub fn sas(sas: &[view::Sa], chosen: bool) -> String {
    if sas.is_empty() {
        return if chosen { "no sa is like that\n" } else { "no sa is configured\n" }.to_owned();
    }
    let row = |s: &view::Sa| {
        let ends = format!("{} > {}", s.source, s.destination);
        [
            s.name.clone(),
            s.direction.clone(),
            s.spi.clone(),
            s.state.clone(),
            s.packets.to_string(),
            s.bytes.to_string(),
            s.sequence.to_string(),
            s.failures.iter().map(|f| f.packets).sum::<u64>().to_string(),
            s.idle_seconds.map_or("never".to_owned(), duration),
            match &s.udp {
                Some(udp) => format!("{} udp {udp}", s.mode),
                None => s.mode.clone(),
            },
            format!("{}{}", s.suite, if s.esn { " esn" } else { "" }),
            s.backend.clone(),
            ends,
            s.users.join(", "),
        ]
    };
    let head = [
        "sa",
        "way",
        "spi",
        "state",
        "packets",
        "bytes",
        "sequence",
        "failed",
        "last used",
        "mode",
        "suite",
        "by",
        "ends",
        "for",
    ];
    let mut out = table(head, 4..9, sas.iter().map(row).collect());
    let without = sas.iter().filter(|sa| !sa.kept).count();
    if without > 0 {
        out += &format!(
            "# {without} of {} keep no state on disk: after a restart recorded packets may be accepted again\n",
            sas.len()
        );
    }
    for sa in sas {
        for f in &sa.failures {
            let (packets, reason, sentence) = (f.packets, &f.reason, &f.sentence);
            out += &format!("# {}: {packets} {reason}: {sentence} (responsible: {})\n", sa.name, f.blame);
        }
        if let Some(mtu) = sa.path_mtu {
            out += &format!("# {}: the path takes {mtu} bytes, as an ICMP error said\n", sa.name);
        }
        for (what, limit) in [("soft", &sa.soft), ("hard", &sa.hard)] {
            let limit = lifetime(limit);
            if !limit.is_empty() {
                out += &format!(
                    "# {}: {what} lifetime {limit}, of which {} s have passed\n",
                    sa.name, sa.age_seconds as u64
                );
            }
        }
    }
    out
}

fn lifetime(limit: &view::Lifetime) -> String {
    let parts = [("bytes", limit.bytes), ("packets", limit.packets), ("s", limit.seconds)];
    let parts: Vec<String> = parts.iter().filter_map(|(unit, n)| n.map(|n| format!("{n} {unit}"))).collect();
    parts.join(", ")
}

/// `chosen`: some of them were asked for.
pub fn tunnels(tunnels: &[view::Tunnel], chosen: bool) -> String {
    if tunnels.is_empty() {
        return if chosen { "no tunnel is like that\n" } else { "no tunnel is configured\n" }.to_owned();
    }
    let row = |t: &view::Tunnel| {
        [
            t.name.clone(),
            if t.up { "up" } else { "down" }.to_owned(),
            t.mtu.to_string(),
            t.traffic.rx_packets.to_string(),
            t.traffic.tx_packets.to_string(),
            t.traffic.rx_bytes.to_string(),
            t.traffic.tx_bytes.to_string(),
            t.out.join(","),
            t.inbound.join(","),
            t.addresses.join(", "),
        ]
    };
    let head =
        ["tunnel", "state", "mtu", "rx pkts", "tx pkts", "rx bytes", "tx bytes", "out", "in", "addresses"];
    table(head, 2..7, tunnels.iter().map(row).collect())
}

/// Policies of an SPD that are shown where not all are asked for: two screens.
const POLICIES_SHOWN: usize = 100;

/// A page of each SPD's policies, of those that are `shown`: how many to skip, and how many at most.
pub fn spds(spds: &[view::Spd], shown: &Shown, (skip, limit): (usize, Option<usize>)) -> String {
    if spds.is_empty() {
        return "no spd is configured\n".to_owned();
    }
    let mut out = String::new();
    for spd in spds {
        let place = match spd.ports.is_empty() {
            true => "of an xfrm device".to_owned(),
            false => format!("on {}", spd.ports.join(", ")),
        };
        out += &format!("spd {} {place}, {} what no policy matches\n", spd.name, spd.default);
        let meant = |p: &view::Policy| {
            let hit = p.out_packets + p.in_packets > 0;
            (hit || !shown.hit) && shown.named.as_ref().is_none_or(|n| p.name.contains(n.as_str()))
        };
        let mut meant: Vec<_> = spd.policies.iter().enumerate().filter(|(_, p)| meant(p)).collect();
        let all = meant.len();
        meant.drain(..skip.min(all));
        match limit {
            Some(limit) => meant.truncate(limit),
            None if shown.all => {}
            None => meant.truncate(POLICIES_SHOWN),
        }
        let row = |&(n, p): &(usize, &view::Policy)| {
            [
                (n + 1).to_string(),
                p.name.clone(),
                p.action.clone(),
                p.direction.clone(),
                p.out_packets.to_string(),
                p.in_packets.to_string(),
                p.out_bytes.to_string(),
                p.in_bytes.to_string(),
                p.selector.clone(),
                p.out.join(","),
                p.inbound.join(","),
            ]
        };
        let head = [
            "#",
            "policy",
            "action",
            "way",
            "out pkts",
            "in pkts",
            "out bytes",
            "in bytes",
            "local <> remote",
            "out",
            "in",
        ];
        out += &table(head, 4..8, meant.iter().map(row).collect());
        if meant.len() < spd.policies.len() {
            out += &format!("# {} of {} policies are shown", meant.len(), spd.policies.len());
            out += match meant.len() < all {
                true => "; --all shows all, --from N and --limit N a page, --named TEXT and --hit choose\n",
                false => "\n",
            };
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_policies_some_are_shown_and_the_rest_is_counted() {
        let policy =
            |n: u64| view::Policy { name: format!("p{n}"), in_packets: n / 999, ..view::Policy::default() };
        let spd = view::Spd {
            name: "wan".into(),
            policies: (0..1000).map(policy).collect(),
            ..view::Spd::default()
        };
        let text = |shown: &Shown| spds(std::slice::from_ref(&spd), shown, (0, None));
        let said = text(&Shown::default());
        assert!(
            said.ends_with(
                "# 100 of 1000 policies are shown; --all shows all, --from N and --limit N a page, --named TEXT and --hit choose\n"
            )
        );
        assert_eq!(said.lines().count(), 103);
        let said = text(&Shown { all: true, ..Shown::default() });
        assert_eq!(said.lines().count(), 1002);
        let page = spds(std::slice::from_ref(&spd), &Shown::default(), (998, Some(5)));
        assert!(page.contains("999   p998") && page.contains("# 2 of 1000"), "{page}");
        let said = text(&Shown { hit: true, ..Shown::default() });
        assert!(said.contains("1000  p999") && said.ends_with("# 1 of 1000 policies are shown\n"), "{said}");
        let said = text(&Shown { named: Some("p77".into()), ..Shown::default() });
        assert!(said.contains("p770") && said.ends_with("# 11 of 1000 policies are shown\n"), "{said}");
    }

    #[test]
    fn an_sa_says_why_it_failed_packets() {
        let failed = view::Drop {
            reason: "replayed".into(),
            packets: 3,
            blame: "sender".into(),
            sentence: "a sequence number seen before".into(),
        };
        let sa = view::Sa { name: "east-in".into(), failures: vec![failed], ..view::Sa::default() };
        let text = sas(&[sa], false);
        assert_eq!(sas(&[], true), "no sa is like that\n");
        assert!(
            text.ends_with("# east-in: 3 replayed: a sequence number seen before (responsible: sender)\n"),
            "{text}"
        );
    }
}
