//! Flags of `derper` that weir has otherwise or not at all, each with its sentence; and durations as Go writes them.

use std::time::Duration;

/// What a relay's sockets have, as derper's have it by default.
const KEEPALIVE: Duration = Duration::from_secs(600);
const USER_TIMEOUT: Duration = Duration::from_secs(15);

/// Flags that are refused whatever their value is, and what to do instead.
const REFUSED: &[(&str, &str)] = &[
    (
        "acme-eab-key",
        "external account binding is not offered; fetch the certificate by another ACME client and write `-certmode manual`",
    ),
    (
        "acme-eab-kid",
        "external account binding is not offered; fetch the certificate by another ACME client and write `-certmode manual`",
    ),
    (
        "rate-config",
        "limits are keys of a configuration file; write `[relay]` with `rate` and run `weir run FILE`",
    ),
    (
        "secrets-cache-dir",
        "there is no setec client here; write the mesh key into a file and name it by -mesh-psk-file",
    ),
    (
        "secrets-path-prefix",
        "there is no setec client here; write the mesh key into a file and name it by -mesh-psk-file",
    ),
    (
        "secrets-url",
        "there is no setec client here; write the mesh key into a file and name it by -mesh-psk-file",
    ),
    (
        "unpublished-bootstrap-dns-names",
        "every name at /bootstrap-dns is published here; write -bootstrap-dns-names, or leave it out",
    ),
];

/// Why this flag is not taken, if it is one of derper's.
pub fn refused(flag: &str) -> Option<&'static str> {
    REFUSED.iter().find(|(name, _)| *name == flag).map(|(_, why)| *why)
}

/// Times of the kernel that every connection has: derper's own defaults and no other.
pub fn fixed(flag: &str) -> Option<Duration> {
    match flag {
        "tcp-keepalive-time" => Some(KEEPALIVE),
        "tcp-user-timeout" => Some(USER_TIMEOUT),
        _ => None,
    }
}

/// `1h30m`, `1.5s`, `250ms`, `0`, as Go's flags have it.
pub fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut sum) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        sum += number
            * match &rest[..unit] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(sum).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, expected) in [
            ("2s", Some(Duration::from_secs(2))),
            ("1h30m", Some(Duration::from_secs(5400))),
            ("1.5s", Some(Duration::from_millis(1500))),
            ("250ms", Some(Duration::from_millis(250))),
            ("10m0s", Some(KEEPALIVE)),
            ("0", Some(Duration::ZERO)),
            ("2", None),
            ("", None),
            ("s", None),
            ("2 s", None),
            ("-1s", None),
            ("2d", None),
        ] {
            assert_eq!(duration(text), expected, "{text}");
        }
    }
}
