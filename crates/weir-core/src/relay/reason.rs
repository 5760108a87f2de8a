//! Why the relay dropped a packet, and how much of it.
//!
//! A reason is one line of the table below: symbol, counter name and one sentence. Where derper has the
//! same reason, the counter has its name, so that dashboards keep working. Counted by class, packets and bytes.

use super::frame::is_disco;

/// Packets of two classes share nothing: data never pushes out what connections are set up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Class {
    Data,
    /// Path discovery.
    Disco,
}

impl Class {
    pub const ALL: [Class; 2] = [Class::Data, Class::Disco];

    /// The class of a packet by its data.
    #[inline]
    pub fn of(data: &[u8]) -> Class {
        if is_disco(data) { Class::Disco } else { Class::Data }
    }

    /// The name by which the field labels its counters.
    pub fn name(self) -> &'static str {
        match self {
            Class::Data => "other",
            Class::Disco => "disco",
        }
    }
}

macro_rules! reasons {
    ($($symbol:ident $name:literal $sentence:literal;)*) => {
        /// Why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Reason { $(#[doc = $sentence] $symbol,)* }

        impl Reason {
            pub const ALL: &'static [Reason] = &[$(Reason::$symbol,)*];
            pub const COUNT: usize = Self::ALL.len();

            /// The counter's name.
            pub fn name(self) -> &'static str {
                match self { $(Reason::$symbol => $name,)* }
            }

            pub fn sentence(self) -> &'static str {
                match self { $(Reason::$symbol => $sentence,)* }
            }
        }
    };
}

reasons! {
    UnknownDest       "unknown_dest"        "nobody with the destination's key is connected here or to the mesh";
    UnknownDestOnFwd  "unknown_dest_on_fwd" "another relay forwarded it for a key that is not connected here; nothing is forwarded twice";
    GoneDisconnected  "gone_disconnected"   "the destination's connection ended before the packet was written";
    QueueHead         "queue_head"          "the destination's queue was full, and this packet was its oldest";
    WriteError        "write_error"         "the destination's socket failed while the packet was written";
    RingFull          "ring_full"           "the destination's worker did not keep up with what other workers handed to it, or the sender had its share of that under way";
}

/// Packets and bytes dropped, by reason and class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drops([[Amount; 2]; Reason::COUNT]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub packets: u64,
    /// Bytes of the packets' data, without keys and headers.
    pub bytes: u64,
}

impl Drops {
    #[inline]
    pub fn add(&mut self, reason: Reason, class: Class, bytes: usize) {
        let amount = &mut self.0[reason as usize][class as usize];
        amount.packets += 1;
        amount.bytes += bytes as u64;
    }

    pub fn of(&self, reason: Reason, class: Class) -> Amount {
        self.0[reason as usize][class as usize]
    }

    /// Packets of every reason and class.
    pub fn packets(&self) -> u64 {
        self.0.iter().flatten().map(|amount| amount.packets).sum()
    }

    /// Every reason and class, also those without a drop.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, Class, Amount)> + '_ {
        let each = |&reason: &Reason| Class::ALL.map(|class| (reason, class, self.of(reason, class)));
        Reason::ALL.iter().flat_map(each)
    }

    pub fn merge(&mut self, other: &Drops) {
        for (a, b) in self.0.iter_mut().flatten().zip(other.0.iter().flatten()) {
            a.packets += b.packets;
            a.bytes += b.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_fit_for_metrics() {
        let fit = |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let mut names: Vec<_> = Reason::ALL.iter().map(|r| r.name()).collect();
        assert!(names.iter().all(|name| fit(name)));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Reason::COUNT);
    }

    #[test]
    fn drops_of_two_workers_add_up_by_reason_and_class() {
        let mut sum = Drops::default();
        sum.add(Reason::QueueHead, Class::Data, 100);
        let mut other = Drops::default();
        other.add(Reason::QueueHead, Class::Data, 11);
        other.add(Reason::UnknownDest, Class::Disco, 62);
        sum.merge(&other);
        assert_eq!(sum.of(Reason::QueueHead, Class::Data), Amount { packets: 2, bytes: 111 });
        assert_eq!(sum.of(Reason::UnknownDest, Class::Disco), Amount { packets: 1, bytes: 62 });
        assert_eq!(sum.packets(), 3);
        assert_eq!(sum.iter().map(|(.., amount)| amount.packets).sum::<u64>(), 3);
    }
}
