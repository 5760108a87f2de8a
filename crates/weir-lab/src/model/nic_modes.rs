//! How network devices are driven between the SUT's ports: what an experiment may vary, and what weir and `ethtool` say of it.

use serde::{Deserialize, Serialize};

use super::relay::is_zero;

/// Empty words and 0 are the choice of weir, or of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicModes {
    /// Receive queues of each device.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub queues: u32,
    /// How weir's idle workers learn of frames.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wake_up: String,
    /// Whether cards read and write weir's buffers themselves.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub zero_copy: String,
    /// Whether weir's XDP program runs in the driver or behind it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub xdp: String,
    /// Whether weir's XDP program forwards what a worker has decided on before.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub flow_offload: String,
    /// Whether weir's workers may send without socket buffers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub live_transmit: String,
    /// Whether the CPUs of weir's workers take the interrupts of their queues too.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub irq: String,
    /// Whether weir's workers have a higher priority than the kernel's reception on their CPU.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nice: String,
    /// Whether receive interrupts of weir's devices may be held back while frames are many; of the kernel's own: `held`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub moderation: String,
}

/// The word for receive interrupts that the testbed holds back, as weir would, for a SUT that does not.
pub const HELD: &str = "held";

impl NicModes {
    /// The keys of `[workers]` that are named, with their words.
    pub fn of_weir(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.with_defaults().map(|(key, word, _)| (key, word))
    }

    /// Those of them that weir would not choose without the key.
    pub fn unlike_default(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.with_defaults().filter(|(_, word, default)| word != default).map(|(key, word, _)| (key, word))
    }

    fn with_defaults(&self) -> impl Iterator<Item = (&'static str, &str, &'static str)> {
        let all = [
            ("wake_up", &self.wake_up, "auto"),
            ("zero_copy", &self.zero_copy, "auto"),
            ("xdp", &self.xdp, "auto"),
            ("flow_offload", &self.flow_offload, "auto"),
            ("live_transmit", &self.live_transmit, "off"),
            ("irq", &self.irq, "leave"),
            ("nice", &self.nice, "auto"),
            ("moderation", &self.moderation, "auto"),
        ];
        let named = all.into_iter().filter(|(_, word, _)| !word.is_empty() && *word != HELD);
        named.map(|(key, word, default)| (key, word.as_str(), default))
    }

    /// Whether the experiment names any of them.
    pub fn is_named(&self) -> bool {
        self.queues > 0 || self.are_held() || self.of_weir().next().is_some()
    }

    /// Whether the testbed holds receive interrupts back.
    pub fn are_held(&self) -> bool {
        self.moderation == HELD
    }

    /// What is left without a SUT.
    pub fn of_wires(&self) -> NicModes {
        NicModes { queues: self.queues, ..NicModes::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_weir_does_anyhow_is_no_setting() {
        let words = ["auto", "off", "leave"].map(str::to_string);
        let [auto, off, leave] = words;
        let modes = NicModes {
            wake_up: auto.clone(),
            zero_copy: off,
            live_transmit: auto,
            irq: leave,
            ..NicModes::default()
        };
        let keys = |(key, _)| key;
        assert_eq!(
            modes.of_weir().map(keys).collect::<Vec<_>>(),
            ["wake_up", "zero_copy", "live_transmit", "irq"]
        );
        let settings: Vec<_> = modes.unlike_default().collect();
        assert_eq!(settings, [("zero_copy", "off"), ("live_transmit", "auto")]);
    }
}
