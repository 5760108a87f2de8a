//! `routes`, `keys`, `firewall` and `bypass_firewall`: what is taken from the kernel, and which of its decisions are left out.
//!
//! ```toml
//! routes = "kernel"
//! routes = { from = "kernel", table = 254, protocols = ["bgp", "static", "kernel"] }
//! keys = "kernel"
//! keys = { from = "kernel", ports = ["wan"], default = "drop" }
//! firewall = "kernel"
//! firewall = { ct_mark = "0x100/0x100" }
//! firewall = { ct_label = 1 }
//! bypass_firewall = true
//! ```

use std::collections::BTreeSet;
use std::ops::Range;

use toml::de::DeValue;
use weir_core::conntrack::{Admission, Mark};
use weir_core::ipsec::spd::Action;
use weir_core::mirror::Filter;
use weir_core::wire::ctnetlink::Labels;
use weir_core::wire::rtnetlink::{Protocol, TABLE_DEFAULT, TABLE_MAIN};

use super::ipsec::policy::{DEFAULTS, Spd};
use super::ipsec::{names, spelling};
use super::read::{Fields, Value, alternatives};
use super::source::{Complaints, write_instead};
use super::table::{Form, Key, Table, names as key_names};
use super::{Placed, Port};

/// What a file says about the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FromKernel {
    /// Its routes and neighbours are taken over, and followed.
    pub routes: Option<Filter>,
    /// Its SAs and policies with an interface id are taken over, and followed.
    pub keys: Option<Keys>,
    /// Its packet filter and address translation decide about each flow, and which of them are taken then.
    pub firewall: Option<Firewall>,
    /// Its packet filter and address translation are not asked, and that is meant.
    pub bypass_firewall: bool,
}

/// Which flows that the kernel's firewall has accepted are forwarded past it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firewall {
    pub at: Range<usize>,
    pub admission: Admission,
}

/// The SPD the kernel's policies are put into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    pub at: Range<usize>,
    /// The ports it is enforced on; None: all of them.
    pub ports: Option<Vec<Placed<String>>>,
    /// Where no policy matches.
    pub default: Action,
}

/// The name of that SPD.
pub const SPD: &str = "kernel";

impl Keys {
    pub fn spd(&self, ports: &[Port]) -> Spd {
        Spd {
            name: Placed::new(SPD.to_owned(), self.at.clone()),
            ports: self.ports.clone().unwrap_or_else(|| ports.iter().map(|p| p.name.clone()).collect()),
            default: self.default,
        }
    }
}

const FROM: &[(&str, bool)] = &[("file", false), ("kernel", true)];
const TABLES: &[(&str, u32)] = &[("main", TABLE_MAIN), ("default", TABLE_DEFAULT)];

const KEYS: [Key; 3] = [
    Key::required(
        "from",
        Form::Words(&["file", "kernel"]),
        "`kernel`: SAs and policies of its XFRM are taken over and followed.",
    ),
    Key::new("ports", Form::OneOrMany(&Form::Text), "The ports where they are enforced. Without it, all."),
    Key::with_default(
        "default",
        Form::Names(&["drop", "bypass"]),
        "\"bypass\"",
        "What becomes of packets that no policy matches.",
    ),
];
const KEYS_TABLE: Table =
    Table { heading: "keys = { … }", about: "IPsec as an IKE daemon gives it to the kernel.", keys: &KEYS };
const FIREWALL: [Key; 2] = [
    Key::new(
        "ct_mark",
        Form::Text,
        "Flows whose conntrack entry carries this mark (value/mask), which a rule of the administrator's sets, are forwarded past \
     the rules once they are established.",
    ),
    Key::new(
        "ct_label",
        Form::Integer(0, Labels::COUNT as u64 - 1),
        "The same for flows whose entry carries this label, by its number (`/etc/xtables/connlabel.conf`); either this or a mark.",
    ),
];
const FIREWALL_TABLE: Table = Table {
    heading: "firewall = { … }",
    about: "The packet filter and address translation stay the kernel's: it decides about each flow and holds its state. \
            `firewall = \"kernel\"`: flows that every chain accepts without looking at single packets are forwarded past them once \
            they are established.",
    keys: &FIREWALL,
};
const ROUTES: [Key; 4] = [
    Key::required(
        "from",
        Form::Words(&["file", "kernel"]),
        "`kernel`: its routes and neighbors are taken over and followed.",
    ),
    Key::with_default(
        "table",
        Form::OneOf(&[Form::Words(&["main", "default"]), Form::Integer(1, u32::MAX as u64)]),
        "\"main\"",
        "The kernel's routing table.",
    ),
    Key::new(
        "protocols",
        Form::OneOrMany(&Form::Text),
        "Routes of these protocols only (`bgp`, `static`, `kernel`, …, or a number).",
    ),
    Key::new(
        "most",
        Form::Integer(1, u32::MAX as u64),
        "Prefixes taken at most; when the kernel has more, everything is left to it. Without it, what memory allows.",
    ),
];
const ROUTES_TABLE: Table =
    Table { heading: "routes = { … }", about: "Routes of the kernel.", keys: &ROUTES };
/// The keys at the top of a file that say what is taken from the kernel.
pub(super) const ROUTES_FORM: Form =
    Form::OneOf(&[Form::Words(&["file", "kernel"]), Form::Table(&ROUTES_TABLE)]);
pub(super) const FIREWALL_FORM: Form = Form::OneOf(&[Form::Words(&["kernel"]), Form::Table(&FIREWALL_TABLE)]);
pub(super) const KEYS_FORM: Form = Form::OneOf(&[Form::Words(&["file", "kernel"]), Form::Table(&KEYS_TABLE)]);

pub fn read(fields: &Fields<'_>, complaints: &mut Complaints) -> FromKernel {
    let bypass_firewall = fields.get("bypass_firewall").is_some_and(|v| match v.value {
        DeValue::Boolean(b) => *b,
        _ => {
            v.refuse("`true` or `false`", "write it without quotes", complaints);
            false
        }
    });
    FromKernel {
        routes: fields.get("routes").and_then(|v| routes(&v, complaints)),
        keys: fields.get("keys").and_then(|v| keys(&v, complaints)),
        firewall: fields.get("firewall").and_then(|v| firewall(&v, complaints)),
        bypass_firewall,
    }
}

fn firewall(value: &Value<'_>, complaints: &mut Complaints) -> Option<Firewall> {
    let at = value.span.clone();
    if matches!(value.value, DeValue::String(_)) {
        value.word(&[("kernel", ())], complaints)?;
        return Some(Firewall { at, admission: Admission::Established });
    }
    let example = "firewall = { ct_mark = \"0x100/0x100\" }";
    let fields = value.table(&key_names(&FIREWALL), example, complaints)?;
    let value = match (fields.get("ct_mark"), fields.get("ct_label")) {
        (Some(value), None) => value,
        (None, Some(value)) => {
            let label = value.integer(0..=Labels::COUNT as u8 - 1, 1, complaints)?;
            return Some(Firewall { at, admission: Admission::Labelled(label) });
        }
        _ => {
            let both = "one of `ct_mark` and `ct_label`";
            value.refuse(both, format!("write `{example}`"), complaints);
            return None;
        }
    };
    let text = value.text("a mark and its mask", "ct_mark = \"0x100/0x100\"", complaints)?;
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    let (mark, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
    let mark = number(mark).zip(number(mask)).and_then(|(mark, mask)| Mark::new(mark, mask));
    if mark.is_none() {
        value.refuse(
            "a mark other than 0 with all its bits in the mask, each a number",
            "write it as nft has it: `\"0x100/0x100\"`",
            complaints,
        );
    }
    mark.map(|mark| Firewall { at, admission: Admission::Marked(mark) })
}

fn keys(value: &Value<'_>, complaints: &mut Complaints) -> Option<Keys> {
    let at = value.span.clone();
    if matches!(value.value, DeValue::String(_)) {
        // As the kernel does: what no policy names passes.
        let keys = Keys { at, ports: None, default: Action::Bypass };
        return value.word(FROM, complaints)?.then_some(keys);
    }
    let example = "keys = { from = \"kernel\", ports = [\"wan\"] }";
    let fields = value.table(&key_names(&KEYS), example, complaints)?;
    let from = fields.required("from", "from = \"kernel\"", complaints)?.word(FROM, complaints)?;
    let ports = fields.get("ports").map(|v| names(&v, "wan", complaints));
    let default = match fields.get("default") {
        Some(v) => v.word_or(&DEFAULTS, &spelling::DEFAULTS, complaints)?,
        None => Action::Bypass,
    };
    from.then_some(Keys { at, ports, default })
}

fn routes(value: &Value<'_>, complaints: &mut Complaints) -> Option<Filter> {
    if matches!(value.value, DeValue::String(_)) {
        return value.word(FROM, complaints)?.then(Filter::default);
    }
    let example = "routes = { from = \"kernel\", protocols = [\"bgp\"] }";
    let fields = value.table(&key_names(&ROUTES), example, complaints)?;
    let from = fields.required("from", "from = \"kernel\"", complaints)?.word(FROM, complaints)?;
    let table = fields.get("table").map_or(Some(TABLE_MAIN), |v| table(&v, complaints))?;
    let protocols = match fields.get("protocols") {
        Some(value) => Some(protocols(&value, complaints)?),
        None => None,
    };
    let most = match fields.get("most") {
        Some(value) => value.integer(1..=u32::MAX, 1_000_000, complaints)? as usize,
        None => usize::MAX,
    };
    from.then_some(Filter { table, protocols, most, ..Filter::default() })
}

fn table(value: &Value<'_>, complaints: &mut Complaints) -> Option<u32> {
    match value.value {
        DeValue::String(_) => value.word(TABLES, complaints),
        _ => value.integer(1..=u32::MAX, TABLE_MAIN, complaints),
    }
}

fn protocols(value: &Value<'_>, complaints: &mut Complaints) -> Option<BTreeSet<Protocol>> {
    let mut all = BTreeSet::new();
    for item in value.one_or_many() {
        let text = item.text("a protocol", "protocols = [\"bgp\", \"static\"]", complaints)?;
        let named = Protocol::named(text);
        if named.is_empty() {
            let names = Protocol::names();
            let expected = format!("{}, or a number from 0 to 255", alternatives(&names));
            item.refuse(expected, write_instead(text, &names), complaints);
            return None;
        }
        all.extend(named);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use weir_core::conntrack::{Admission, Mark};
    use weir_core::ipsec::spd::Action;

    const PORTS: &str =
        "[[port]]\nname = \"lan\"\ndevice = \"eth0\"\n[[port]]\nname = \"wan\"\ndevice = \"eth1\"\n";

    fn parsed(keys: &str) -> Result<super::super::Config, super::super::Refused> {
        super::super::parse("test.toml", "test", format!("{keys}\n{PORTS}"))
    }

    #[test]
    fn the_kernels_policies_have_an_spd_on_every_port_or_those_named() {
        let all = parsed("keys = \"kernel\"").expect("a configuration");
        let [spd] = all.ipsec.spds.as_slice() else { panic!("one SPD") };
        assert_eq!((spd.name.value.as_str(), spd.ports.len(), spd.default), ("kernel", 2, Action::Bypass));
        assert!(all.enforces());
        let one = parsed("keys = { from = \"kernel\", ports = [\"wan\"], default = \"drop\" }");
        let one = one.expect("a configuration");
        let spd = &one.ipsec.spds[0];
        assert_eq!((spd.ports[0].value.as_str(), spd.default), ("wan", Action::Discard));
        let none = parsed("keys = \"file\"").expect("a configuration");
        assert!(none.kernel.keys.is_none() && none.ipsec.spds.is_empty());
    }

    #[test]
    fn a_mark_is_read_as_nft_writes_it() {
        let ports = PORTS.replace("\n[[port]]", "\naddresses = \"kernel\"\n[[port]]");
        let ports = ports.trim_end().to_owned() + "\naddresses = \"kernel\"\n";
        let parsed = |top: &str| super::super::parse("test.toml", "test", format!("{top}\n{ports}"));
        let routes = "routes = \"kernel\"\n";
        for (text, value, mask) in
            [("0x100/0x100", 0x100, 0x100), ("7", 7, u32::MAX), ("0x10/255", 0x10, 0xff)]
        {
            let config = parsed(&format!("{routes}firewall = {{ ct_mark = \"{text}\" }}")).expect("read");
            let mark = Mark::new(value, mask).expect("a mark");
            let firewall = config.kernel.firewall.expect("a firewall");
            assert_eq!(firewall.admission, Admission::Marked(mark), "{text}");
        }
        let config = parsed(&format!("{routes}firewall = \"kernel\"")).expect("read");
        assert_eq!(config.kernel.firewall.expect("a firewall").admission, Admission::Established);
        let refused = parsed(&format!("{routes}firewall = \"kernal\"")).expect_err("refused");
        assert!(refused.text.contains("`\"kernel\"`"), "{}", refused.text);
        for wrong in ["0", "0x100/0xff", "0x100/", "mark", ""] {
            let refused = parsed(&format!("{routes}firewall = {{ ct_mark = \"{wrong}\" }}"));
            assert!(refused.expect_err("refused").text.contains("0x100/0x100"), "{wrong}");
        }
        let config = parsed(&format!("{routes}firewall = {{ ct_label = 127 }}")).expect("read");
        assert_eq!(config.kernel.firewall.expect("a firewall").admission, Admission::Labelled(127));
        for wrong in ["ct_label = 128", "ct_label = \"lan\"", "", "ct_label = 1, ct_mark = \"1\""] {
            let refused = parsed(&format!("{routes}firewall = {{ {wrong} }}"));
            assert!(refused.expect_err("refused").text.contains("expected"), "{wrong}");
        }
        let refused = parsed("firewall = { ct_mark = \"1\" }").expect_err("refused").text;
        assert!(refused.contains("routes = \"kernel\""), "{refused}");
        let refused = parsed(&format!("{routes}keys = \"kernel\"\nfirewall = {{ ct_mark = \"1\" }}"));
        assert!(refused.expect_err("refused").text.contains("IPsec"));
    }

    #[test]
    fn what_keys_cannot_be_is_refused_where_it_stands() {
        for (keys, expected) in [
            ("keys = \"kernal\"", "write `\"kernel\"`"),
            ("keys = { ports = [\"wan\"] }", "from"),
            ("keys = { from = \"kernel\", ports = [\"won\"] }", "write `wan`"),
            ("keys = { from = \"kernel\", default = \"pass\" }", "default"),
            ("keys = \"kernel\"\n[[spd]]\nname = \"x\"\nports = [\"wan\"]", "wan"),
        ] {
            let refused = match keys.split_once("\n") {
                Some((first, rest)) => {
                    super::super::parse("test.toml", "test", format!("{first}\n{PORTS}{rest}\n")).err()
                }
                None => parsed(keys).err(),
            };
            let said = refused.expect(keys).text;
            assert!(said.contains(expected), "{keys}: {said}");
        }
    }
}
