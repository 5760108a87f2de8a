//! `[hosts]` and `command`: the machines of the `ssh` topology, and SUTs that are any command.
//!
//! Promises: what is named here goes into the manifest as it stands, so that a campaign can be repeated.
//! Refuses: secrets (a key is named by its file), options that would switch the checking of host keys off,
//! and words that a shell or `ssh` would take for something else.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::{CommandError, ExperimentError, HostError};

/// Three machines in a row: generator ─ device under test ─ receiver. Two may be one machine. A relay's packets come
/// back to the generator: it needs no receiver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hosts {
    pub generator: Host,
    pub device_under_test: Host,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiver: Option<Host>,
    #[serde(default)]
    pub timeouts: Timeouts,
}

/// How a machine is reached, and its test interfaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// `user@host`, or an alias of ssh_config.
    pub ssh: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// File of the private key; without it ssh's own choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Further options of ssh_config, `Name=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// The test interface of generator and receiver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The interfaces of the device under test: where test packets come in, and where they leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Generator,
    DeviceUnderTest,
    Receiver,
}

/// A SUT made of shell commands on the device under test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commands {
    /// Files by name, with their text; they lie in `$WEIR_DIR`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// Files by name, copied from these paths of this machine (programs, secrets).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub upload: BTreeMap<String, String>,
    /// Makes the device forward; ends with 0 when it does.
    pub apply: String,
    /// Asked until it ends with 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<String>,
    /// Prints drop counters, `name value` a line, counting up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<String>,
    /// Undoes `apply`. What `apply` left running is ended after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teardown: Option<String>,
}

/// How long each step may take, written with its unit (`"10s"`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// Limit for a host to answer to ssh.
    pub connect: Within,
    /// Time to upload the lab's programs over one connection.
    pub upload: Within,
    /// Limit for the SUT to be up.
    pub apply: Within,
    /// Limit for a test packet to be received.
    pub health: Within,
    /// Time to answer what needs no work; a window may be late by as much.
    pub answer: Within,
    /// Limit for what was sampled to be named and sent.
    pub profile: Within,
    /// Limit for the SUT to be gone.
    pub teardown: Within,
}

/// A limit in time, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Within(pub Duration);

/// A host on the same site answers in milliseconds; one that boots, in a minute: the next block finds it.
const CONNECT: Duration = Duration::from_secs(10);
/// 40 MB, debug builds of both programs, at 6 Mbit/s.
const UPLOAD: Duration = Duration::from_secs(60);
/// A million routes in a debug build (see the SUT weir), and as much again as a slow host takes.
const APPLY: Duration = Duration::from_secs(240);
/// Links that negotiate and bridges that learn take a few seconds.
const HEALTH: Duration = Duration::from_secs(15);
const ANSWER: Duration = Duration::from_secs(10);
/// Reading the debug information of a debug build, and 31,000 samples (256 MiB of records) by it.
const PROFILE: Duration = Duration::from_secs(120);
/// Taking a million routes back takes some seconds.
const TEARDOWN: Duration = Duration::from_secs(60);

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            connect: Within(CONNECT),
            upload: Within(UPLOAD),
            apply: Within(APPLY),
            health: Within(HEALTH),
            answer: Within(ANSWER),
            profile: Within(PROFILE),
            teardown: Within(TEARDOWN),
        }
    }
}

impl Serialize for Within {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{}ms", self.0.as_millis()))
    }
}

impl<'de> Deserialize<'de> for Within {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let limit = super::file::millis(&text).filter(|&ms| ms > 0).map(Duration::from_millis).map(Within);
        limit.ok_or_else(|| {
            serde::de::Error::custom(format!("got \"{text}\", expected a time above 0 such as \"10s\""))
        })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Generator => "generator",
            Role::DeviceUnderTest => "device_under_test",
            Role::Receiver => "receiver",
        })
    }
}

impl Role {
    pub const ALL: [Role; 3] = [Role::Generator, Role::DeviceUnderTest, Role::Receiver];
}

/// What the lab sets itself: a connection that asks nobody and believes no unknown key.
const OURS: [&str; 7] = [
    "BatchMode",
    "ConnectTimeout",
    "ServerAliveInterval",
    "ServerAliveCountMax",
    "StrictHostKeyChecking",
    "RemoteCommand",
    "RequestTTY",
];
/// Linux's IFNAMSIZ less its zero.
const INTERFACE_MAX: usize = 15;

impl Hosts {
    /// The host of a role; `None` for a receiver that is left out.
    pub fn host(&self, role: Role) -> Option<&Host> {
        match role {
            Role::Generator => Some(&self.generator),
            Role::DeviceUnderTest => Some(&self.device_under_test),
            Role::Receiver => self.receiver.as_ref(),
        }
    }

    /// The roles that have a host.
    fn named(&self) -> impl Iterator<Item = (Role, &Host)> {
        Role::ALL.into_iter().filter_map(|role| Some((role, self.host(role)?)))
    }

    /// What is wrong with these hosts, with the remedy.
    pub fn check(&self) -> Result<(), ExperimentError> {
        for (role, host) in self.named() {
            let at = |key: &'static str| move |error| ExperimentError::Host { role, key, error };
            let device = role == Role::DeviceUnderTest;
            // nothing leaves towards a receiver that is left out
            let output_needed = self.receiver.is_some();
            check_destination(&host.ssh).map_err(at("ssh"))?;
            host.options.iter().try_for_each(|o| check_option(o)).map_err(at("options"))?;
            for (key, value, wanted) in [
                ("interface", &host.interface, !device),
                ("input", &host.input, device),
                ("output", &host.output, device),
            ] {
                let checked = match value {
                    Some(name) if wanted => check_interface(name),
                    None if !wanted || (key == "output" && !output_needed) => Ok(()),
                    Some(_) => Err(HostError::Meaningless),
                    None => Err(HostError::Missing),
                };
                checked.map_err(at(key))?;
            }
        }
        Ok(())
    }

    /// Hosts that stand for the reader's own: names under `.example` (RFC 2606).
    pub fn placeholder(&self) -> Option<String> {
        self.named().find_map(|(role, host)| {
            let ssh = &host.ssh;
            ssh.ends_with(".example").then(|| {
                format!("hosts.{role}: {ssh} stands for a host of yours: name one you can reach by ssh")
            })
        })
    }
}

impl Host {
    /// Test interfaces, in the direction of the packets.
    pub fn interfaces(&self) -> Vec<String> {
        [&self.interface, &self.input, &self.output].into_iter().flatten().cloned().collect()
    }
}

impl Commands {
    pub fn check(&self) -> Result<(), CommandError> {
        let names = self.files.keys().chain(self.upload.keys());
        for name in names {
            if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
                return Err(CommandError::FileName { got: name.clone() });
            }
            if self.files.contains_key(name) && self.upload.contains_key(name) {
                return Err(CommandError::Twice { file: name.clone() });
            }
        }
        if self.apply.trim().is_empty() {
            return Err(CommandError::NoApply);
        }
        Ok(())
    }
}

fn check_destination(text: &str) -> Result<(), HostError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "@.-_:%[]".contains(c);
    if text.is_empty() || text.starts_with('-') || !text.chars().all(fits) {
        return Err(HostError::Destination { got: text.into() });
    }
    Ok(())
}

fn check_option(text: &str) -> Result<(), HostError> {
    let Some((name, _)) =
        text.split_once('=').filter(|(name, _)| name.chars().all(|c| c.is_ascii_alphanumeric()))
    else {
        return Err(HostError::Option { got: text.into() });
    };
    match OURS.iter().find(|ours| ours.eq_ignore_ascii_case(name)) {
        Some(ours) => Err(HostError::OwnOption(ours)),
        None => Ok(()),
    }
}

fn check_interface(name: &str) -> Result<(), HostError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    if name.is_empty()
        || name.len() > INTERFACE_MAX
        || name.starts_with(['-', '.'])
        || !name.chars().all(fits)
    {
        return Err(HostError::Interface { got: name.into() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(text: &str) -> Result<Hosts, ExperimentError> {
        let hosts: Hosts = toml::from_str(text).map_err(|e| ExperimentError::Toml(e.message().into()))?;
        hosts.check().map(|()| hosts)
    }

    const GOOD: &str = "generator = { ssh = \"root@gen\", interface = \"eth1\" }\n\
        device_under_test = { ssh = \"dut\", port = 2222, input = \"eth1\", output = \"eth2.5\" }\n\
        receiver = { ssh = \"root@192.0.2.3\", interface = \"eth1\", options = [\"ProxyJump=bastion\"] }\n";

    #[test]
    fn hosts_come_back_from_the_manifest_as_they_were_written() {
        let text = format!("{GOOD}timeouts = {{ connect = \"2500ms\", health = \"1min\" }}\n");
        let read = hosts(&text).expect("valid");
        assert_eq!(read.timeouts.connect, Within(Duration::from_millis(2500)));
        assert_eq!(read.timeouts.health, Within(Duration::from_secs(60)));
        assert_eq!(read.timeouts.answer, Within(ANSWER));
        let json = serde_json::to_string(&read).expect("plain data");
        assert_eq!(serde_json::from_str::<Hosts>(&json).expect("our own"), read);
        assert_eq!(read.placeholder(), None);
    }

    #[test]
    fn a_receiver_is_left_out_with_what_leads_to_it() {
        let (relays, _) = GOOD.split_once("receiver = ").expect("it is named last");
        for text in [relays.to_string(), relays.replace(", output = \"eth2.5\"", "")] {
            let read = hosts(&text).expect("valid");
            assert_eq!((read.host(Role::Receiver), read.placeholder()), (None, None));
            let json = serde_json::to_string(&read).expect("plain data");
            assert!(!json.contains("receiver"), "{json}");
            assert_eq!(serde_json::from_str::<Hosts>(&json).expect("our own"), read);
        }
        let refused = hosts(&GOOD.replace(", output = \"eth2.5\"", "")).expect_err("a receiver has a wire");
        assert!(refused.to_string().contains("hosts.device_under_test.output: is missing"), "{refused}");
    }

    #[test]
    fn what_would_switch_host_keys_off_or_reach_a_shell_is_refused() {
        let cases = [
            (
                "ProxyJump=bastion",
                "StrictHostKeyChecking=no",
                "hosts.receiver.options: StrictHostKeyChecking is the",
            ),
            ("ProxyJump=bastion", "batchmode=no", "BatchMode is the lab's own"),
            ("ProxyJump=bastion", "-oX", "expected an option of ssh_config"),
            ("root@gen", "-oProxyCommand=x", "hosts.generator.ssh: got"),
            ("root@gen", "a;reboot", "expected user@host"),
            ("eth2.5", "eth 2", "hosts.device_under_test.output: got"),
            ("eth2.5", "an-interface-too-long", "expected the name of an interface"),
            ("port = 2222", "interface = \"x\"", "hosts.device_under_test.interface: has no meaning here"),
            ("input = \"eth1\",", "", "hosts.device_under_test.input: is missing"),
        ];
        for (good, bad, expected) in cases {
            let got = hosts(&GOOD.replace(good, bad)).expect_err("refused").to_string();
            assert!(got.contains(expected), "{bad}\n  got      {got}\n  expected {expected}");
        }
        let got =
            hosts(&format!("{GOOD}timeouts = {{ connect = \"0s\" }}\n")).expect_err("refused").to_string();
        assert!(got.contains("above 0"), "{got}");
    }

    #[test]
    fn names_under_example_are_placeholders() {
        let read = hosts(&GOOD.replace("root@gen", "root@generator.example")).expect("valid");
        assert!(read.placeholder().expect("a placeholder").contains("name one you can reach"));
    }

    #[test]
    fn files_of_a_command_stay_in_their_folder() {
        let with = |name: &str| Commands {
            files: BTreeMap::from([(name.to_string(), String::new())]),
            apply: "true".into(),
            ..Commands::default()
        };
        assert_eq!(with("a.conf").check(), Ok(()));
        assert!(with("../a").check().is_err() && with(".a").check().is_err() && with("").check().is_err());
        assert!(
            Commands::default()
                .check()
                .expect_err("nothing to apply")
                .to_string()
                .contains("`apply` is empty")
        );
    }
}
