//! The configuration file: TOML in, a [`Config`] out, or every complaint about it at once.
//!
//! Promises: a file with anything wrong is refused whole; each complaint names its place, what was got,
//! what was expected and what to write. What depends on the machine (does the device exist, which
//! addresses does the kernel have) is not asked here: `weir check` works anywhere.

pub mod check;
pub mod ipsec;
pub mod kernel;
pub mod keys;
pub mod merged;
pub mod own_files;
pub mod port;
pub mod read;
pub mod reference;
pub mod relay;
pub mod route;
pub mod settings;
pub mod source;
pub mod table;
pub mod warning;

use std::fmt::{self, Display};
use std::io::Read as _;
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Serialize;
use toml::de::{DeTable, DeValue};
use weir_core::ipsec::cipher::Keys;
use weir_core::ipsec::spd::LookupSpec;
use weir_core::state::{
    AddressSpec, Desired, NeighborSpec, NextHopSpec, PolicySpec, PortSpec, RouteSpec, Via as CoreVia,
};
use weir_core::tables::{Owner, Settings};

pub use ipsec::Ipsec;
use keys::{Keyring, KeysError};
pub use port::{Addresses, Kind, Port};
use read::{Fields, Value};
pub use route::{Neighbor, Route, Via};
use source::{Complaint, Complaints, Excerpt, Source};
pub use warning::Warning;

/// A value and where it stands in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed<T> {
    pub value: T,
    pub span: Range<usize>,
}

impl<T> Placed<T> {
    pub fn new(value: T, span: Range<usize>) -> Self {
        Placed { value, span }
    }
}

/// A file that is right in itself.
#[derive(Clone, Debug)]
pub struct Config {
    /// The router's name: the file's stem unless `name` says otherwise.
    pub name: String,
    pub source: Source,
    pub ports: Vec<Port>,
    pub routes: Vec<Route>,
    pub neighbors: Vec<Neighbor>,
    pub ipsec: Ipsec,
    /// `None` where the keys file was not to be read: good enough to judge the rest, not to run.
    keyring: Option<Keyring>,
    /// Sentences about what could not be checked.
    pub notes: Vec<String>,
    pub workers: settings::Workers,
    pub control: settings::Control,
    pub limits: Settings,
    pub kernel: kernel::FromKernel,
    /// The file is a relay's: there are no ports.
    pub relay: Option<Box<relay::RelayConfig>>,
}

/// A file that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Rendered complaints, or why the file cannot be read.
    pub text: String,
    /// Every complaint with its place; empty where the file cannot be read.
    pub complaints: Vec<Located>,
}

/// A complaint with its place, for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Located {
    /// Counted from 1, as the column.
    pub line: usize,
    /// Column in characters.
    pub column: usize,
    pub message: String,
}

impl Refused {
    /// A text that cannot be judged at all.
    fn unread(text: String) -> Refused {
        Refused { text, complaints: Vec::new() }
    }
}

impl Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refused {}

/// Largest configuration read: a full table of 1.2 M routes at some 50 bytes each is 60 MB.
const FILE_MAX: u64 = 256 << 20;
/// Complaints printed; the rest are counted.
const COMPLAINTS_SHOWN: usize = 50;

/// What is done about the keys file a configuration names.
#[derive(Clone, Copy, Debug)]
pub enum KeysFrom<'a> {
    /// It is read, relative to this folder, and must be good.
    Folder(&'a Path),
    /// The same, but a user who may not read it hears so in [`Config::notes`].
    IfReadable(&'a Path),
    /// It is left alone.
    Nowhere,
}

/// Reads and judges a file, and the keys file it names.
pub fn load(path: &Path) -> Result<Config, Refused> {
    load_with(path, KeysFrom::Folder(&folder_of(path)))
}

/// Whether a file is a relay's, as far as it can be read: what is wrong with it is said by who loads it.
pub fn is_relay(path: &Path) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    DeTable::parse_recoverable(&text).0.get_ref().iter().any(|(key, _)| key.get_ref() == "relay")
}

/// Like [`load`], for a user who need not be the one who runs the file; `-` is standard input, whose relative paths start
/// in the working directory.
pub fn check(path: &Path) -> Result<Config, Refused> {
    let folder = folder_of(path);
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin()
            .lock()
            .take(FILE_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| unreadable(path, &e))?;
        return of_bytes("standard input", "weir", bytes, KeysFrom::IfReadable(&folder));
    }
    load_with(path, KeysFrom::IfReadable(&folder))
}

/// Where a configuration's own relative paths start.
pub fn folder_of(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    whole.parent().map_or_else(PathBuf::new, Path::to_owned)
}

fn load_with(path: &Path, keys: KeysFrom<'_>) -> Result<Config, Refused> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| unreadable(path, &e))?;
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(|e| unreadable(path, &e))?;
    let name = path.file_stem().map_or("weir".to_owned(), |s| s.to_string_lossy().into_owned());
    of_bytes(&path.display().to_string(), &name, bytes, keys)
}

fn of_bytes(shown: &str, name: &str, bytes: Vec<u8>, keys: KeysFrom<'_>) -> Result<Config, Refused> {
    if bytes.len() as u64 > FILE_MAX {
        return Err(Refused::unread(format!(
            "{shown}: more than {FILE_MAX} bytes, which is the most that is read; is it a configuration?"
        )));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        let line = e.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1;
        Refused::unread(format!("{shown}:{line}: byte {at} of the file is not UTF-8; save it as UTF-8 text"))
    })?;
    parse_with(shown, name, text, keys)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Refused {
    let remedy = match error.kind() {
        std::io::ErrorKind::NotFound => "check the path; examples/ has files to start from",
        std::io::ErrorKind::PermissionDenied => "run as a user who may read it",
        _ => "name a readable file",
    };
    Refused::unread(format!("{}: cannot read it ({error}); {remedy}", path.display()))
}

/// Judges a text and reads no other file. `file` is printed in complaints, `name` is the router's name
/// unless the text has one.
pub fn parse(file: &str, name: &str, text: String) -> Result<Config, Refused> {
    parse_with(file, name, text, KeysFrom::Nowhere)
}

/// Like [`parse`], with keys from `keys`.
pub fn parse_with(file: &str, name: &str, text: String, keys: KeysFrom<'_>) -> Result<Config, Refused> {
    let source = Source { name: file.to_owned(), text };
    let mut complaints = Complaints::default();
    let text = source.text.clone();
    let (document, errors) = DeTable::parse_recoverable(&text);
    for error in &errors {
        let end = text.len();
        let span = error.span().unwrap_or(end..end);
        complaints.add(span, format!("not TOML: {}", error.message()));
    }
    if !complaints.is_empty() {
        // A half-parsed tree would only breed complaints about what is not wrong.
        return Err(refused(&source, complaints));
    }
    let mut config = build(&source, name, document.get_ref(), document.span(), &mut complaints);
    if document.get_ref().iter().all(|(key, _)| key.get_ref() != "relay") {
        check::check(&config, &mut complaints);
    }
    config.read_keys(keys, &mut complaints);
    if let (Some(relay), KeysFrom::Folder(folder) | KeysFrom::IfReadable(folder)) = (&config.relay, keys) {
        relay.check_files(&config.name, folder, &mut complaints);
    }
    if complaints.is_empty() {
        check::check_core(&config, &mut complaints);
    }
    if complaints.is_empty() { Ok(config) } else { Err(refused(&source, complaints)) }
}

/// Judges a text of one `[[policy]]` by itself: names of SPDs and SAs are for who knows them.
pub fn parse_policy(text: String) -> Result<PolicySpec, Refused> {
    let source = Source { name: "policy".to_owned(), text };
    let mut complaints = Complaints::default();
    let (document, errors) = DeTable::parse_recoverable(&source.text);
    for error in &errors {
        complaints.add(error.span().unwrap_or_default(), format!("not TOML: {}", error.message()));
    }
    let fields =
        Fields::new(document.get_ref(), document.span(), String::new(), &["policy"], &mut complaints);
    let mut policies = each(&fields, "policy", &mut complaints, ipsec::policy::policy);
    match policies.pop() {
        Some(policy) if complaints.is_empty() && policies.is_empty() => Ok(policy.spec),
        _ => Err(refused(&source, complaints)),
    }
}

fn refused(source: &Source, complaints: Complaints) -> Refused {
    let complaints = complaints.sorted();
    let located = |complaint: &Complaint| {
        let (line, column) = source.position(complaint.span.start);
        Located { line, column, message: complaint.message.clone() }
    };
    let text = if complaints.len() <= COMPLAINTS_SHOWN {
        source.render_all(&complaints)
    } else {
        let shown: String = complaints[..COMPLAINTS_SHOWN].iter().map(|c| source.render(c)).collect();
        format!(
            "{shown}{}: {} errors, the first {COMPLAINTS_SHOWN} are shown; nothing was changed",
            source.name,
            complaints.len()
        )
    };
    Refused { text, complaints: complaints.iter().map(located).collect() }
}

fn build<'a>(
    source: &Source,
    name: &str,
    table: &'a DeTable<'a>,
    span: Range<usize>,
    complaints: &mut Complaints,
) -> Config {
    let start = span.start.min(source.text.len());
    let fields = Fields::new(table, start..start, String::new(), reference::KEYS, complaints);
    let section = |key: &str| fields.get(key);
    let ipsec = section("ipsec").and_then(|v| ipsec::lookup::section(&v, complaints));
    let ipsec::lookup::Section { keys, lookup, state, ciphers } = ipsec.unwrap_or_default();
    let kernel = kernel::read(&fields, complaints);
    let ports: Vec<Port> = each(&fields, "port", complaints, port::read);
    let mut spds = each(&fields, "spd", complaints, ipsec::policy::spd);
    spds.extend(kernel.keys.as_ref().map(|keys| keys.spd(&ports)));
    Config {
        name: router_name(section("name"), name, complaints),
        source: source.clone(),
        ports,
        routes: each(&fields, "route", complaints, route::read),
        neighbors: each(&fields, "neighbor", complaints, route::neighbor),
        ipsec: Ipsec {
            keys,
            lookup,
            state,
            ciphers,
            sas: each(&fields, "sa", complaints, ipsec::sa::read),
            tunnels: each(&fields, "tunnel", complaints, ipsec::policy::tunnel),
            spds,
            policies: each(&fields, "policy", complaints, ipsec::policy::policy),
        },
        keyring: None,
        notes: Vec::new(),
        workers: section("workers").and_then(|v| settings::workers(&v, complaints)).unwrap_or_default(),
        control: section("control").and_then(|v| settings::control(&v, complaints)).unwrap_or_default(),
        limits: section("limits").and_then(|v| settings::limits(&v, complaints)).unwrap_or_default(),
        kernel,
        relay: relay(&fields, complaints),
    }
}

/// `[relay]`, which stands alone but for `[workers]` and `[control]`.
fn relay(fields: &Fields<'_>, complaints: &mut Complaints) -> Option<Box<relay::RelayConfig>> {
    let value = fields.get("relay")?;
    relay::RelayConfig::check_beside(fields, complaints);
    if let Some(buffers) = fields.get("workers").and_then(|w| w.inside("buffers")) {
        complaints.add(buffers, "workers: buffers: packets of ports have these; write `buffers` in [relay]");
    }
    for key in ["wake_up", "zero_copy", "xdp", "flow_offload", "live_transmit", "irq", "nice", "moderation"] {
        if let Some(at) = fields.get("workers").and_then(|w| w.inside(key)) {
            complaints.add(at, format!("workers: {key}: is of ports, and a relay has none; remove it"));
        }
    }
    relay::read(&value, complaints).map(Box::new)
}

/// The name is part of the socket's path.
fn router_name(value: Option<Value<'_>>, stem: &str, complaints: &mut Complaints) -> String {
    const NAME_MAX: usize = 32;
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    if let Some(value) = value
        && let Some(text) = value.text("a name", "name = \"router\"", complaints)
    {
        if !text.is_empty() && text.len() <= NAME_MAX && text.chars().all(fits) {
            return text.to_owned();
        }
        value.refuse(
            format!("1 to {NAME_MAX} letters, digits, `_` or `-`"),
            "write a short name such as `\"router\"`",
            complaints,
        );
    }
    let kept: String = stem.chars().filter(|&c| fits(c)).take(NAME_MAX).collect();
    if kept.is_empty() { "weir".to_owned() } else { kept }
}

/// Every `[[key]]` that can be read; complaints about the others.
fn each<'a, T>(
    fields: &Fields<'a>,
    key: &str,
    complaints: &mut Complaints,
    read: impl Fn(&Value<'a>, &mut Complaints) -> Option<T>,
) -> Vec<T> {
    let Some(value) = fields.get(key) else { return Vec::new() };
    match value.value {
        DeValue::Array(items) => items
            .iter()
            .enumerate()
            .filter_map(|(n, item)| {
                let subject = format!("{key} number {}", n + 1);
                read(&Value::spanned(item, subject), complaints)
            })
            .collect(),
        _ => {
            value.refuse(
                format!("a list of {key}s"),
                format!("write `[[{key}]]` with two brackets"),
                complaints,
            );
            Vec::new()
        }
    }
}

impl Config {
    /// Devices in the order of their first port, each with its kind and files.
    pub fn devices(&self) -> Vec<&Port> {
        let mut devices: Vec<&Port> = Vec::new();
        for port in &self.ports {
            if !devices.iter().any(|d| d.device.value == port.device.value) {
                devices.push(port);
            }
        }
        devices
    }

    /// Policies apply: what the router does not take must not be forwarded by the kernel.
    pub fn enforces(&self) -> bool {
        !self.ipsec.is_empty()
    }

    /// The devices the kernel would forward from too, where policies apply.
    pub fn enforced_devices(&self) -> Vec<&Port> {
        let kernels = |port: &&Port| matches!(port.kind.value, Kind::Auto | Kind::AfXdp | Kind::AfPacket);
        if self.enforces() { self.devices().into_iter().filter(kernels).collect() } else { Vec::new() }
    }

    /// The state this file asks for, given the addresses the kernel has on each device (by name).
    pub fn desired(&self, kernel: &dyn Fn(&Port) -> Vec<(IpAddr, u8)>) -> Desired {
        let hop = |hop: &route::NextHop| NextHopSpec {
            gateway: hop.gateway.as_ref().map(|g| g.value),
            port: hop.port.as_ref().map(|p| p.value.clone()),
            weight: hop.weight,
        };
        let via = |via: &Via| match via {
            Via::NextHops(hops) => CoreVia::NextHops(hops.iter().map(hop).collect()),
            Via::Blackhole => CoreVia::Blackhole,
            Via::Unreachable => CoreVia::Unreachable,
            Via::Prohibited => CoreVia::Prohibited,
        };
        Desired {
            ports: self.ports.iter().map(|p| port_spec(p, &kernel(p))).collect(),
            routes: self
                .routes
                .iter()
                .map(|r| RouteSpec { prefix: r.prefix.value, via: via(&r.via) })
                .collect(),
            neighbors: self
                .neighbors
                .iter()
                .map(|n| NeighborSpec { port: n.port.value.clone(), address: n.address.value, mac: n.mac })
                .collect(),
            settings: self.limits,
            ipsec: self.ipsec.spec(&|sa| self.keys(sa)),
            routes_from_kernel: self.kernel.routes.is_some(),
        }
    }

    fn keys(&self, sa: &ipsec::Sa) -> Keys {
        match &self.keyring {
            Some(ring) => ipsec::keys_of(sa, ring),
            None => ipsec::stand_in(sa),
        }
    }

    /// How SPDs are asked.
    pub fn lookup(&self) -> LookupSpec {
        self.ipsec.asked()
    }

    /// What was made of the options of flow caches, a sentence each.
    pub fn notes_on_lookups(&self) -> Vec<String> {
        if self.ipsec.spds.is_empty() && self.ipsec.lookup.spec() != LookupSpec::default() {
            return vec![
                "ipsec: there is no spd, so nothing uses its spd options; add a `[[spd]]`".to_owned(),
            ];
        }
        self.ipsec.lookup.notes_on_lookups()
    }

    /// The keys of all SAs were read: this can be run.
    pub fn has_keys(&self) -> bool {
        self.keyring.is_some()
    }

    fn read_keys(&mut self, keys: KeysFrom<'_>, complaints: &mut Complaints) {
        let sas = &self.ipsec.sas;
        let Some(file) = &self.ipsec.keys else {
            if let Some(key) = sas.iter().find_map(|sa| sa.key.as_ref().or(sa.integrity_key.as_ref())) {
                let remedy = "write `[ipsec]` with `keys = \"gateway.keys\"`";
                complaints.add(
                    key.span.clone(),
                    format!("key {}: no keys file is named to find it in; {remedy}", key.value),
                );
            }
            self.keyring = Some(Keyring::default());
            return;
        };
        let folder = match keys {
            KeysFrom::Folder(folder) | KeysFrom::IfReadable(folder) => folder,
            KeysFrom::Nowhere => return,
        };
        match Keyring::read(&folder.join(&file.value)) {
            Ok(ring) => {
                self.ipsec.check_keys(&ring, complaints);
                self.keyring = Some(ring);
            }
            Err(denied @ KeysError::Denied { .. }) if matches!(keys, KeysFrom::IfReadable(_)) => {
                self.notes.push(format!("{denied}; names and lengths of keys are not checked"));
            }
            Err(error) => complaints.add(file.span.clone(), format!("ipsec: keys: {error}")),
        }
    }

    /// A place of this file, for what is found later by someone who asked the machine.
    pub fn excerpt(&self, span: Range<usize>) -> Excerpt {
        self.source.excerpt(span)
    }

    /// A complaint about a place of this file.
    pub fn complain(&self, span: Range<usize>, message: impl Display) -> String {
        self.excerpt(span).render(message)
    }
}

/// An address the kernel's interface has too is the kernel's to answer for.
fn port_spec(port: &Port, kernel: &[(IpAddr, u8)]) -> PortSpec {
    let owner = |address: IpAddr| match kernel.iter().any(|k| k.0 == address) {
        true => Owner::Kernel,
        false => Owner::Weir,
    };
    let addresses = match &port.addresses {
        Addresses::Kernel => kernel.to_vec(),
        Addresses::List(list) => list.iter().map(|a| a.value).collect(),
    };
    PortSpec {
        name: port.name.value.clone(),
        device: port.device.value.clone(),
        vlan: port.vlan.as_ref().map(|v| v.value),
        mtu: port.mtu.as_ref().map(|m| m.value),
        addresses: addresses
            .into_iter()
            .map(|(address, prefix_len)| AddressSpec { address, prefix_len, owner: owner(address) })
            .collect(),
        reverse_path: port.reverse_path,
    }
}
