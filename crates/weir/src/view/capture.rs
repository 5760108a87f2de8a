//! `POST /v1/capture`: copies of dropped packets, as the request and what comes back.

use serde::{Deserialize, Serialize};

/// Without `id` a capture begins; with it, what was copied since is fetched, which keeps the capture going.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Fetches for the last time and ends the capture.
    #[serde(default)]
    pub end: bool,
    /// Begin: names of reasons as `GET /v1/drops` has them; none are all that can be copied.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// Begin: copies a second of each worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    /// Begin: bytes kept of a packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snap: Option<usize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    pub id: u64,
    /// Packets dropped for one of the reasons since the capture began, copied or not.
    pub dropped: u64,
    /// In order for each worker.
    pub packets: Vec<DroppedPacket>,
    /// More wait: ask again at once.
    pub more: bool,
}

/// A packet as it was when it was dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedPacket {
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    pub reason: String,
    /// The port it came in on or was to leave by; of what a tunnel or SPD has opened, theirs. Empty where no port has it.
    pub port: String,
    /// `ethernet`, or `ip` where the link header was off.
    pub link: String,
    /// Its length; `bytes` may hold less.
    pub length: usize,
    /// In hexadecimal.
    pub bytes: String,
}
