//! Address prefixes in canonical form: host bits are zero, lengths are in range.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An IPv4 prefix. Ordered by address, then length: a covering prefix comes before what it covers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix4 {
    bits: u32,
    len: u8,
}

/// An IPv6 prefix, ordered likewise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix6 {
    bits: u128,
    len: u8,
}

/// A prefix of either family.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Prefix {
    V4(Prefix4),
    V6(Prefix6),
}

macro_rules! prefix {
    ($name:ident, $bits:ty, $addr:ty) => {
        impl $name {
            /// The prefix that covers everything.
            pub const ALL: Self = $name { bits: 0, len: 0 };

            /// The prefix of `len` bits around `addr`; host bits are cleared, `len` is clipped.
            pub fn new(addr: $addr, len: u8) -> Self {
                Self::from_bits(<$bits>::from(addr), len)
            }

            pub fn from_bits(bits: $bits, len: u8) -> Self {
                let len = len.min(<$bits>::BITS as u8);
                $name { bits: bits & Self::mask(len), len }
            }

            /// The network mask of a length.
            pub fn mask(len: u8) -> $bits {
                <$bits>::MAX.checked_shl(<$bits>::BITS - len as u32).unwrap_or(0)
            }

            #[inline]
            pub fn bits(self) -> $bits {
                self.bits
            }

            #[inline]
            pub fn addr(self) -> $addr {
                <$addr>::from(self.bits)
            }

            #[expect(clippy::len_without_is_empty, reason = "a prefix length, not a size")]
            #[inline]
            pub fn len(self) -> u8 {
                self.len
            }

            #[inline]
            pub fn contains(self, addr: $addr) -> bool {
                <$bits>::from(addr) & Self::mask(self.len) == self.bits
            }

            /// The last address covered.
            pub fn last(self) -> $bits {
                self.bits | !Self::mask(self.len)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}/{}", self.addr(), self.len)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

prefix!(Prefix4, u32, Ipv4Addr);
prefix!(Prefix6, u128, Ipv6Addr);

impl Prefix {
    pub fn new(addr: IpAddr, len: u8) -> Self {
        match addr {
            IpAddr::V4(a) => Prefix::V4(Prefix4::new(a, len)),
            IpAddr::V6(a) => Prefix::V6(Prefix6::new(a, len)),
        }
    }

    pub fn addr(self) -> IpAddr {
        match self {
            Prefix::V4(p) => p.addr().into(),
            Prefix::V6(p) => p.addr().into(),
        }
    }

    #[expect(clippy::len_without_is_empty, reason = "a prefix length, not a size")]
    pub fn len(self) -> u8 {
        match self {
            Prefix::V4(p) => p.len(),
            Prefix::V6(p) => p.len(),
        }
    }

    /// Whether the address is of this family and inside.
    pub fn contains(self, addr: IpAddr) -> bool {
        match (self, addr) {
            (Prefix::V4(p), IpAddr::V4(a)) => p.contains(a),
            (Prefix::V6(p), IpAddr::V6(a)) => p.contains(a),
            _ => false,
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Prefix::V4(p) => p.fmt(f),
            Prefix::V6(p) => p.fmt(f),
        }
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a text is not a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefixError {
    NotAnAddress {
        text: String,
        address: String,
    },
    Length {
        text: String,
        length: String,
        most: u8,
    },
    /// Bits are set beyond the length; `meant` is the prefix without them.
    HostBits {
        text: String,
        meant: Prefix,
    },
}

impl PrefixError {
    /// What to write, where that follows from the text.
    pub fn remedy(&self) -> Option<String> {
        match self {
            PrefixError::HostBits { meant, .. } => Some(format!("write `{meant}`")),
            PrefixError::NotAnAddress { .. } | PrefixError::Length { .. } => None,
        }
    }

    /// The sentence, with an example to follow where the text has no remedy.
    pub fn or_example(&self, example: &str) -> String {
        match self.remedy() {
            Some(_) => self.to_string(),
            None => format!("{self}; write for example `\"{example}\"`"),
        }
    }
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrefixError::NotAnAddress { text, address } => {
                write!(f, "prefix `{text}`: `{address}` is not an IPv4 or IPv6 address")
            }
            PrefixError::Length { text, length, most } => {
                write!(f, "prefix `{text}`: the length is `{length}`, expected 0 to {most}")
            }
            PrefixError::HostBits { text, .. } => {
                write!(f, "prefix `{text}`: bits are set beyond the length")
            }
        }?;
        self.remedy().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

impl std::error::Error for PrefixError {}

impl FromStr for Prefix {
    type Err = PrefixError;

    /// Reads `192.0.2.0/24`, `2001:db8::/32`, or a bare address as a host prefix. Host bits must be
    /// zero: `10.0.0.1/8` is more often a typing error than a wish.
    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let (addr, len) = match text.split_once('/') {
            Some((addr, len)) => (addr, Some(len)),
            None => (text, None),
        };
        let addr: IpAddr = addr
            .parse()
            .map_err(|_| PrefixError::NotAnAddress { text: text.to_owned(), address: addr.to_owned() })?;
        let max = if addr.is_ipv4() { 32 } else { 128 };
        let len =
            match len {
                None => max,
                Some(len) => len.parse::<u8>().ok().filter(|&n| n <= max).ok_or_else(|| {
                    PrefixError::Length { text: text.to_owned(), length: len.to_owned(), most: max }
                })?,
            };
        let prefix = Prefix::new(addr, len);
        if prefix.addr() != addr {
            return Err(PrefixError::HostBits { text: text.to_owned(), meant: prefix });
        }
        Ok(prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for text in ["0.0.0.0/0", "10.0.0.0/8", "192.0.2.1/32", "::/0", "2001:db8::/32", "::1/128"] {
            assert_eq!(text.parse::<Prefix>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn host_bits_are_refused_with_the_remedy() {
        let error = "10.0.0.1/8".parse::<Prefix>().expect_err("host bits").to_string();
        assert!(error.contains("write `10.0.0.0/8`"), "{error}");
    }

    #[test]
    fn zero_length_covers_everything() {
        let all = Prefix4::new(Ipv4Addr::new(1, 2, 3, 4), 0);
        assert!(all.contains(Ipv4Addr::BROADCAST));
        assert_eq!(all.last(), u32::MAX);
    }
}
