//! `weir top` of a relay: its clients by what they send and receive.
//!
//! A client is named as Tailscale's tools name it: the first five digits of its key in base64, in brackets. Columns that
//! a narrow screen has no room for are left out from the right.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use clap::ValueEnum;

use super::screen::Size;
use super::si;
use crate::control::client::{self, ClientError};
use crate::text::duration;
use crate::view::relay::{Peer, RelayStatus};

/// What the first rows have most of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Sent and received
    #[default]
    Traffic,
    /// Received from it
    In,
    /// Sent to it
    Out,
    /// Packets for it that were dropped
    Drops,
    /// Bytes that wait for it
    Waiting,
    /// Connected longest
    For,
    /// The key itself
    Key,
}

/// Keys of the keyboard, and what each sorts by.
const KEYS: [(u8, Sort, &str); 7] = [
    (b't', Sort::Traffic, "traffic"),
    (b'i', Sort::In, "in"),
    (b'o', Sort::Out, "out"),
    (b'd', Sort::Drops, "drops"),
    (b'w', Sort::Waiting, "waiting"),
    (b'f', Sort::For, "for"),
    (b'k', Sort::Key, "key"),
];

impl Sort {
    pub fn of_key(key: u8) -> Option<Sort> {
        KEYS.iter().find(|known| known.0 == key).map(|known| known.1)
    }
}

/// Counters of a moment.
pub struct Look {
    at: Instant,
    relay: RelayStatus,
    peers: Vec<Peer>,
}

impl Look {
    pub fn new(socket: &Path) -> Result<Look, ClientError> {
        let relay = client::read(socket, "/v1/relay")?;
        Ok(Look { relay, peers: client::read(socket, "/v1/peers")?, at: Instant::now() })
    }
}

/// A client's row: numbers to sort by.
struct Row<'a> {
    peer: &'a Peer,
    short: String,
    /// Bytes a second.
    received: f64,
    sent: f64,
    /// Packets a second.
    drops: f64,
}

impl Row<'_> {
    fn cells(&self) -> [String; COLUMNS] {
        let p = self.peer;
        [
            self.short.clone(),
            si(self.received * 8.0),
            si(self.sent * 8.0),
            si(self.drops),
            si(p.queued_bytes as f64),
            duration(p.connected_seconds as f64),
            match (p.role.as_str(), p.home) {
                ("client", true) => "home".to_owned(),
                ("client", false) => String::new(),
                (role, _) => role.to_owned(),
            },
            p.worker.to_string(),
            format!("{}{}", p.tls, if p.websocket { " websocket" } else { "" }),
            p.address.clone(),
        ]
    }
}

const COLUMNS: usize = 10;
const HEAD: [&str; COLUMNS] =
    ["client", "in bits/s", "out bits/s", "drops/s", "waiting", "for", "role", "worker", "tls", "address"];
/// Columns whose cells stand at the right.
const NUMBERS: std::ops::Range<usize> = 1..6;
/// Blanks from one column to the next.
const GAP: usize = 2;

/// One screen, or, without a size, everything.
pub fn screen(before: &Look, now: &Look, sort: Sort, size: Option<Size>) -> String {
    let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-3);
    let mut rows = rows(before, now, seconds);
    let order = |value: fn(&Row<'_>) -> f64| {
        move |a: &Row<'_>, b: &Row<'_>| value(b).total_cmp(&value(a)).then_with(|| a.short.cmp(&b.short))
    };
    match sort {
        Sort::Traffic => rows.sort_by(order(|r| r.received + r.sent)),
        Sort::In => rows.sort_by(order(|r| r.received)),
        Sort::Out => rows.sort_by(order(|r| r.sent)),
        Sort::Drops => rows.sort_by(order(|r| r.drops)),
        Sort::Waiting => rows.sort_by_key(|r| (Reverse(r.peer.queued_bytes), r.short.clone())),
        Sort::For => rows.sort_by_key(|r| (Reverse(r.peer.connected_seconds), r.short.clone())),
        Sort::Key => rows.sort_by(|a, b| a.peer.key.cmp(&b.peer.key)),
    }
    let mut lines = summary(before, now, seconds);
    // Behind the rows: how many more there are, and the keys.
    let room = size.map_or(usize::MAX, |size| size.lines.saturating_sub(lines.len() + 4).max(1));
    let (shown, left_out) = fitted(&rows[..rows.len().min(room)], size.map(|size| size.columns));
    lines.extend(shown);
    if rows.is_empty() {
        lines.push("no client is connected".to_owned());
    }
    if rows.len() > room {
        lines.push(format!("and {} more (`weir show peers` has all, with whole keys)", rows.len() - room));
    }
    if let Some(size) = size {
        lines.push(legend(sort, left_out));
        lines.iter_mut().for_each(|line| *line = line.chars().take(size.columns).collect());
    }
    lines.join("\n") + "\n"
}

fn rows<'a>(before: &Look, now: &'a Look, seconds: f64) -> Vec<Row<'a>> {
    let known: BTreeMap<(&str, &str), &Peer> =
        before.peers.iter().map(|p| ((p.key.as_str(), p.address.as_str()), p)).collect();
    let row = |peer: &'a Peer| {
        // One that came since has counted from zero.
        let old = known.get(&(peer.key.as_str(), peer.address.as_str()));
        let rate = |now: u64, before: Option<u64>| now.saturating_sub(before.unwrap_or(0)) as f64 / seconds;
        Row {
            peer,
            short: short(&peer.key),
            received: rate(peer.bytes_received, old.map(|o| o.bytes_received)),
            sent: rate(peer.bytes_sent, old.map(|o| o.bytes_sent)),
            drops: rate(peer.packets_dropped, old.map(|o| o.packets_dropped)),
        }
    };
    now.peers.iter().map(row).collect()
}

/// The relay as a whole, in lines that a screen of 40 columns holds.
fn summary(before: &Look, now: &Look, seconds: f64) -> Vec<String> {
    let sum = |look: &Look, of: fn(&crate::view::relay::RelayWorkerCounters) -> u64| {
        look.relay.workers.iter().map(of).sum::<u64>()
    };
    let rate = |of: fn(&crate::view::relay::RelayWorkerCounters) -> u64| {
        sum(now, of).saturating_sub(sum(before, of)) as f64 / seconds
    };
    let mut lines = vec![
        format!("{} clients, {} packets/s in", now.relay.connections, si(rate(|w| w.packets_in))),
        format!(
            "{} forwarded/s, {} dropped/s",
            si(rate(|w| w.packets_forwarded)),
            si(rate(|w| w.packets_dropped.values().sum()))
        ),
        format!(
            "{} bits/s in, {} bits/s out",
            si(8.0 * rate(|w| w.bytes_received)),
            si(8.0 * rate(|w| w.bytes_sent))
        ),
    ];
    if now.relay.balance != 0 {
        lines.push(format!("! {} packets unaccounted for", now.relay.balance));
    }
    lines.push(String::new());
    lines
}

/// A table of as many columns as fit, and those that do not.
fn fitted(rows: &[Row<'_>], columns: Option<usize>) -> (Vec<String>, &'static [&'static str]) {
    let cells: Vec<[String; COLUMNS]> =
        std::iter::once(HEAD.map(str::to_owned)).chain(rows.iter().map(Row::cells)).collect();
    let width = |column: usize| cells.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let mut fit = 0;
    let mut used = 0;
    while fit < COLUMNS {
        used += width(fit) + if fit == 0 { 0 } else { GAP };
        if fit > 0 && columns.is_some_and(|columns| used > columns) {
            break;
        }
        fit += 1;
    }
    let line = |row: &[String; COLUMNS]| {
        let cells = row[..fit].iter().enumerate().map(|(at, cell)| match NUMBERS.contains(&at) {
            true => format!("{cell:>width$}", width = width(at)),
            false => format!("{cell:width$}", width = width(at)),
        });
        cells.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned()
    };
    (cells.iter().map(line).collect(), &HEAD[fit..])
}

/// The keys of the keyboard: whole where there is room, the sort in capitals.
fn legend(sort: Sort, left_out: &[&str]) -> String {
    let keys: Vec<String> = KEYS
        .iter()
        .map(|(key, of, name)| match *of == sort {
            true => name.to_uppercase(),
            false => format!("{} {name}", char::from(*key)),
        })
        .collect();
    let mut legend = format!("q quit, sort: {}", keys.join(", "));
    if !left_out.is_empty() {
        legend += &format!("; wider: {}", left_out.join(", "));
    }
    legend
}

/// A node key as Tailscale's tools shorten it; what is no key stays as it is.
fn short(key: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let first = key.strip_prefix("nodekey:").and_then(|hex| hex.get(..8));
    match first.and_then(|hex| u32::from_str_radix(hex, 16).ok()) {
        Some(bits) => {
            let digit = |at: u32| char::from(DIGITS[(bits >> (26 - 6 * at) & 63) as usize]);
            format!("[{}]", (0..5).map(digit).collect::<String>())
        }
        None => key.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::view::relay::RelayWorkerCounters;

    fn peer(first: &str, received: u64, queued_bytes: u64) -> Peer {
        Peer {
            key: format!("nodekey:{first}{}", "0".repeat(56)),
            address: format!("192.0.2.{queued_bytes}:4000"),
            role: "client".into(),
            bytes_received: received,
            bytes_sent: 100,
            queued_bytes,
            connected_seconds: 125,
            tls: "user".into(),
            ..Peer::default()
        }
    }

    fn looks() -> [Look; 2] {
        let at = Instant::now();
        let relay = |packets_in| RelayStatus {
            connections: 2,
            workers: vec![RelayWorkerCounters { packets_in, ..RelayWorkerCounters::default() }],
            ..RelayStatus::default()
        };
        let look = |at, relay, a: u64, b: u64| Look {
            at,
            relay,
            peers: vec![peer("00000000", a, 9), peer("ffffffff", b, 7)],
        };
        [look(at, relay(10), 1000, 5000), look(at + Duration::from_secs(2), relay(30), 1250, 9000)]
    }

    #[test]
    fn a_key_is_shortened_as_tailscale_does() {
        // The first 30 bits of the key in base64.
        assert_eq!(short(&format!("nodekey:{}", "00".repeat(32))), "[AAAAA]");
        assert_eq!(short("nodekey:d6a1c0ffee"), "[1qHA/]");
        assert_eq!(short("nonsense"), "nonsense");
    }

    #[test]
    fn clients_are_sorted_by_what_is_asked_for() {
        let [before, now] = looks();
        let first = |sort| {
            let text = screen(&before, &now, sort, None);
            let row = text.lines().skip_while(|l| !l.starts_with("client")).nth(1).expect("a row").to_owned();
            row.split_whitespace().next().expect("a key").to_owned()
        };
        assert_eq!(first(Sort::In), "[/////]");
        assert_eq!(first(Sort::Waiting), "[AAAAA]");
        assert_eq!(first(Sort::Key), "[AAAAA]");
        let text = screen(&before, &now, Sort::Traffic, None);
        assert!(text.starts_with("2 clients, 10 packets/s in\n"), "{text}");
        // 4,000 bytes in two seconds.
        assert!(text.contains("[/////]    16.00 k "), "{text}");
    }

    #[test]
    fn a_narrow_screen_keeps_the_first_columns_and_no_line_is_longer() {
        let [before, now] = looks();
        for columns in 20..140 {
            let text = screen(&before, &now, Sort::Traffic, Some(Size { columns, lines: 24 }));
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}:\n{text}");
            assert!(text.contains("[/////]"));
        }
        let narrow = screen(&before, &now, Sort::Traffic, Some(Size { columns: 40, lines: 24 }));
        assert!(narrow.contains("in bits/s") && !narrow.contains("192.0.2.9"), "{narrow}");
        let wide = screen(&before, &now, Sort::Traffic, Some(Size { columns: 120, lines: 24 }));
        assert!(wide.contains("192.0.2.9:4000") && wide.contains("q quit, sort: TRAFFIC, i in"), "{wide}");
    }

    #[test]
    fn a_low_screen_says_how_many_are_not_on_it() {
        let [before, mut now] = looks();
        now.peers = (0..50).map(|n| peer(&format!("{n:08x}"), 0, n)).collect();
        let text = screen(&before, &now, Sort::Key, Some(Size { columns: 80, lines: 20 }));
        assert!(text.lines().count() < 20, "{text}");
        assert!(text.contains("more (`weir show peers` has all"), "{text}");
    }

    #[test]
    fn every_key_sorts_and_every_sort_has_a_key() {
        for sort in Sort::value_variants() {
            assert!(
                KEYS.iter().any(|(key, of, _)| of == sort && Sort::of_key(*key) == Some(*sort)),
                "{sort:?}"
            );
        }
    }
}
