//! `[ipsec]`: the keys file, whose ciphers are used, and how SPDs are asked: flow caches, the classifier, the oracle.
//!
//! Promises: options have the names the field gave them; a number of buckets is rounded up to a power of two
//! here, and said so, so that what is shown is what runs; what a cache takes is known before it is made.
//! Refuses: no buckets, and more than [`BUCKETS_MAX`], with the memory they would take. Whether this machine
//! has that memory is asked where the caches are made ([`crate::router::memory`]).

use std::ops::Range;

use toml::de::DeValue;
use weir_core::ipsec::flow_cache::{BUCKETS, BUCKETS_MAX, FlowCache, FlowCaches};
use weir_core::ipsec::spd::{Layer, LookupSpec, Way};

use super::State;
use crate::config::Placed;
use crate::config::read::{Fields, Value};
use crate::config::source::Complaints;
use crate::config::table::{Form, Key, Table, names as key_names};
use weir_core::state::amount;

const SWITCH: Form = Form::OneOf(&[Form::Words(&["on", "off"]), Form::Boolean]);
const IPSEC: [Key; 14] = [
    Key::new("keys", Form::Text, "The keys file, relative to this file: `name = \"hex\"` lines, mode 600."),
    Key::with_default(
        "ipv4-inbound-spd-flow-cache",
        SWITCH,
        "\"off\"",
        "Whether a flow cache remembers what the SPD answered for IPv4 packets that come in.",
    ),
    Key::with_default(
        "ipv4-inbound-spd-hash-buckets",
        Form::Integer(1, BUCKETS_MAX as u64),
        "4194304",
        "Buckets of that flow cache, rounded up to a power of two.",
    ),
    Key::with_default(
        "ipv4-outbound-spd-flow-cache",
        SWITCH,
        "\"off\"",
        "Whether a flow cache remembers what the SPD answered for IPv4 packets that leave.",
    ),
    Key::with_default(
        "ipv4-outbound-spd-hash-buckets",
        Form::Integer(1, BUCKETS_MAX as u64),
        "4194304",
        "Buckets of that flow cache, rounded up to a power of two.",
    ),
    Key::with_default(
        "ipv6-inbound-spd-flow-cache",
        SWITCH,
        "\"off\"",
        "Whether a flow cache remembers what the SPD answered for IPv6 packets that come in.",
    ),
    Key::with_default(
        "ipv6-inbound-spd-hash-buckets",
        Form::Integer(1, BUCKETS_MAX as u64),
        "4194304",
        "Buckets of that flow cache, rounded up to a power of two.",
    ),
    Key::with_default(
        "ipv6-outbound-spd-flow-cache",
        SWITCH,
        "\"off\"",
        "Whether a flow cache remembers what the SPD answered for IPv6 packets that leave.",
    ),
    Key::with_default(
        "ipv6-outbound-spd-hash-buckets",
        Form::Integer(1, BUCKETS_MAX as u64),
        "4194304",
        "Buckets of that flow cache, rounded up to a power of two.",
    ),
    Key::with_default(
        "spd-classifier",
        Form::OneOf(&[Form::Words(&["auto", "on", "off"]), Form::Boolean]),
        "\"auto\"",
        "Whether a compiled classifier answers for the SPD; off, its policies are scanned in order.",
    ),
    Key::with_default(
        "spd-oracle",
        SWITCH,
        "\"off\"",
        "Whether every answer is compared with a plain scan. For tests: it is slow.",
    ),
    Key::with_default(
        "ciphers",
        Form::Words(&["auto", "library"]),
        "\"auto\"",
        "The code that seals and opens packets: the fastest by measurement at the start, or the library (aws-lc) alone.",
    ),
    Key::new(
        "state_dir",
        Form::Text,
        "The folder, an absolute path, that remembers sequence numbers, replay windows and used lifetimes over restarts.",
    ),
    Key::with_default(
        "accept_replay_risk",
        Form::Boolean,
        "false",
        "Whether SAs run although it is not known what they used before. Recorded packets may then be accepted again.",
    ),
];
pub const TABLE: Table =
    Table { heading: "[ipsec]", about: "Keys, the state of SAs, and how the SPD is asked.", keys: &IPSEC };

const ON_OFF: [(&str, bool); 2] = [("on", true), ("off", false)];
const LAYERS: [(&str, Layer); 3] = [("auto", Layer::Auto), ("on", Layer::Classifier), ("off", Layer::Scan)];

const CIPHERS: [(&str, Ciphers); 2] = [("auto", Ciphers::Auto), ("library", Ciphers::Library)];

/// The code that seals and opens packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ciphers {
    /// The fastest on this machine for each size of packet, by measurement: weir's own vector code among them.
    #[default]
    Auto,
    /// The library's alone (aws-lc).
    Library,
}

/// How SPDs are asked, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lookup {
    /// The caches, by [`Way`].
    caches: [Cache; 4],
    layer: Layer,
    oracle: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Cache {
    /// The option that switches it on.
    on: Option<Range<usize>>,
    buckets: Option<Placed<u32>>,
}

/// All of `[ipsec]`.
#[derive(Clone, Debug, Default)]
pub struct Section {
    pub keys: Option<Placed<String>>,
    pub lookup: Lookup,
    pub state: State,
    pub ciphers: Ciphers,
}

pub fn section(value: &Value<'_>, complaints: &mut Complaints) -> Option<Section> {
    let fields = value.table(&key_names(&IPSEC), "[ipsec]", complaints)?;
    let keys = fields.get("keys").and_then(|v| keys(&v, complaints));
    let caches = Way::ALL.map(|way| cache(&fields, way, complaints));
    let layer = fields.get("spd-classifier").and_then(|v| word(&v, &LAYERS, complaints));
    let oracle = fields.get("spd-oracle").and_then(|v| word(&v, &ON_OFF, complaints));
    let lookup = Lookup { caches, layer: layer.unwrap_or_default(), oracle: oracle.unwrap_or_default() };
    let ciphers = fields.get("ciphers").and_then(|v| v.word(&CIPHERS, complaints)).unwrap_or_default();
    Some(Section { keys, lookup, state: super::state::read(&fields, complaints), ciphers })
}

fn keys(value: &Value<'_>, complaints: &mut Complaints) -> Option<Placed<String>> {
    let text = value.text("a file name", "keys = \"gateway.keys\"", complaints)?;
    if text.is_empty() || text.contains('\0') {
        value.refuse("a file name", "write `\"gateway.keys\"`", complaints);
        return None;
    }
    Some(Placed::new(text.to_owned(), value.span.clone()))
}

fn cache(fields: &Fields<'_>, way: Way, complaints: &mut Complaints) -> Cache {
    let switch = fields.get(&switch_key(way));
    let on = switch.and_then(|v| word(&v, &ON_OFF, complaints)?.then_some(v.span));
    let buckets = fields.get(&buckets_key(way)).and_then(|v| buckets(&v, way, complaints));
    Cache { on, buckets }
}

/// One of a few words; `true` and `false` are `"on"` and `"off"`.
fn word<T: Copy>(value: &Value<'_>, words: &[(&'static str, T)], complaints: &mut Complaints) -> Option<T> {
    if let DeValue::Boolean(b) = value.value {
        let meant = if *b { "on" } else { "off" };
        return words.iter().find(|w| w.0 == meant).map(|w| w.1);
    }
    value.word(words, complaints)
}

fn buckets(value: &Value<'_>, way: Way, complaints: &mut Complaints) -> Option<Placed<u32>> {
    let wanted = match value.value {
        DeValue::Integer(n) => u64::from_str_radix(n.as_str(), n.radix()).ok(),
        _ => None,
    };
    if let Some(n) = wanted.filter(|n| *n > BUCKETS_MAX.into()) {
        let one = FlowCache::bytes(way, BUCKETS) / u64::from(BUCKETS);
        let takes = amount(u128::from(n).next_power_of_two() * u128::from(one));
        value.refuse(
            format!("at most {BUCKETS_MAX} (these would take {takes})"),
            format!("write `{BUCKETS}`, which takes {}", amount(FlowCache::bytes(way, BUCKETS))),
            complaints,
        );
        return None;
    }
    let n = value.integer(1..=BUCKETS_MAX, BUCKETS, complaints)?;
    Some(Placed::new(n, value.span.clone()))
}

fn switch_key(way: Way) -> String {
    format!("{}-spd-flow-cache", way.name())
}

fn buckets_key(way: Way) -> String {
    format!("{}-spd-hash-buckets", way.name())
}

impl Lookup {
    /// What the core is to make, buckets rounded up.
    pub fn spec(&self) -> LookupSpec {
        let buckets = |cache: &Cache| {
            cache.on.as_ref()?;
            Some(cache.buckets.as_ref().map_or(BUCKETS, |b| b.value).next_power_of_two())
        };
        let mut caches = [None; 4];
        for (into, cache) in caches.iter_mut().zip(&self.caches) {
            *into = buckets(cache);
        }
        LookupSpec { caches, layer: self.layer, oracle: self.oracle }
    }

    /// What an operator should know of these options, a sentence each.
    pub fn notes_on_lookups(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (way, cache) in Way::ALL.into_iter().zip(&self.caches) {
            let (Some(buckets), key) = (&cache.buckets, buckets_key(way)) else { continue };
            let (n, rounded) = (buckets.value, buckets.value.next_power_of_two());
            if cache.on.is_none() {
                let switch = switch_key(way);
                notes.push(format!(
                    "{key}: {n} buckets are given and the cache is off; write `{switch} = \"on\"` to have it"
                ));
            } else if rounded != n {
                notes.push(format!("{key}: {n} buckets rounded up to {rounded}"));
            }
        }
        notes.extend(memory(&self.spec()));
        notes
    }

    /// Where a cache's size is written, or else where it is switched on.
    pub fn span(&self, way: Way) -> Range<usize> {
        let cache = &self.caches[way as usize];
        let written = cache.buckets.as_ref().map(|b| b.span.clone());
        written.or_else(|| cache.on.clone()).unwrap_or_default()
    }

    pub fn oracle(&self) -> bool {
        self.oracle
    }
}

/// What caches take, in all and each; `None` where there is none.
pub fn memory(spec: &LookupSpec) -> Option<String> {
    let each = Way::ALL.into_iter().filter_map(|way| {
        let buckets = spec.buckets(way)?;
        Some(format!("{} {buckets} buckets in {}", way.name(), amount(FlowCache::bytes(way, buckets))))
    });
    let each: Vec<String> = each.collect();
    let all = amount(FlowCaches::memory(spec));
    (!each.is_empty()).then(|| format!("spd flow caches take {all}: {}", each.join(", ")))
}
