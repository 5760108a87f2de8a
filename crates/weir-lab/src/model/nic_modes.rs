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
    /// Whether weir's XDP program forwards what a worker has decided on before.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub flow_offload: String,
    /// Whether weir's workers may send without socket buffers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub live_transmit: String,
}

impl NicModes {
    /// The keys of `[workers]` that are named, with their words.
    pub fn of_weir(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [
            ("wake_up", &self.wake_up),
            ("zero_copy", &self.zero_copy),
            ("flow_offload", &self.flow_offload),
            ("live_transmit", &self.live_transmit),
        ];
        all.into_iter().filter(|(_, word)| !word.is_empty()).map(|(key, word)| (key, word.as_str()))
    }

    /// Whether the experiment names any of them.
    pub fn is_named(&self) -> bool {
        self.queues > 0 || self.of_weir().next().is_some()
    }

    /// What is left without a SUT.
    pub fn of_wires(&self) -> NicModes {
        NicModes { queues: self.queues, ..NicModes::default() }
    }
}
