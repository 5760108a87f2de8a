//! What C programs and Rust share, said in Rust; the build compares it with the headers in `bpf/include/weir`.
//!
//! Promises: a structure here has the size, the offsets and the widths its C namesake has, or nothing is
//! built. Refuses: padding without a name; bytes nobody names would be read as they happen to be.

/// A field as it lies in memory, in the machine's byte order.
pub trait Field: Copy {
    fn put(self, to: &mut [u8]);
    fn take(from: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($number:ty)*) => { $(
        impl Field for $number {
            fn put(self, to: &mut [u8]) {
                to.copy_from_slice(&self.to_ne_bytes());
            }
            fn take(from: &[u8]) -> Self {
                let mut bytes = [0; size_of::<$number>()];
                bytes.copy_from_slice(from);
                <$number>::from_ne_bytes(bytes)
            }
        }
    )* };
}

numbers!(u8 u16 u32 u64 i32);

impl<const N: usize> Field for [u8; N] {
    fn put(self, to: &mut [u8]) {
        to.copy_from_slice(&self);
    }
    fn take(from: &[u8]) -> Self {
        let mut bytes = [0; N];
        bytes.copy_from_slice(from);
        bytes
    }
}

/// One structure, as the build compares it.
pub struct Shared {
    /// The header it stands in.
    pub header: &'static str,
    pub name: &'static str,
    pub size: usize,
    /// (name, offset, size)
    pub fields: &'static [(&'static str, usize, usize)],
}

macro_rules! shared {
    ($($header:literal { $($(#[$doc:meta])* struct $rust:ident = $c:literal {
        $($(#[$field_doc:meta])* $field:ident: $kind:ty,)*
    })* })*) => {
        $($(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            #[repr(C)]
            pub struct $rust { $($(#[$field_doc])* pub $field: $kind,)* }

            impl $rust {
                pub const SIZE: usize = size_of::<$rust>();
                const NO_PADDING: () = assert!(0 $(+ size_of::<$kind>())* == Self::SIZE);

                /// The bytes the program has in memory.
                pub fn to_bytes(self) -> [u8; Self::SIZE] {
                    let mut bytes = [0; Self::SIZE];
                    $({
                        let at = std::mem::offset_of!($rust, $field);
                        self.$field.put(&mut bytes[at..at + size_of::<$kind>()]);
                    })*
                    bytes
                }

                pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
                    let () = Self::NO_PADDING;
                    $rust { $($field: {
                        let at = std::mem::offset_of!($rust, $field);
                        Field::take(&bytes[at..at + size_of::<$kind>()])
                    },)* }
                }
            }

            impl Default for $rust {
                fn default() -> Self {
                    Self::from_bytes(&[0; Self::SIZE])
                }
            }
        )*)*

        /// Every structure C and Rust share.
        pub const STRUCTS: &[Shared] = &[$($(Shared {
            header: $header,
            name: $c,
            size: size_of::<$rust>(),
            fields: &[$((stringify!($field), std::mem::offset_of!($rust, $field), size_of::<$kind>())),*],
        },)*)*];
    };
}

shared! {
    "weir/fib.h" {
        /// Routes that say that a packet goes nowhere, on one CPU.
        struct FibDrops = "fib_drops" {
            blackhole: u64,
            unreachable: u64,
            prohibit: u64,
        }
    }
    "weir/generate.h" {
        /// What all frames of a generator have in common.
        struct GenerateParams = "generate_params" {
            ifindex: u32,
            /// How much higher every sequence number is in the next round.
            stride: u32,
            slots: u32,
            /// Bytes written of each frame, even.
            head: u16,
            sequence_at: u16,
            time_at: u16,
            checksum_at: u16,
            /// Whether frames differ in length.
            adjust: u32,
        }
        /// How far the generator is, and when it goes on. Times in 1/16 ns, but for the last.
        struct GenerateState = "generate_state" {
            cursor: u32,
            round: u32,
            sent: u64,
            next: u64,
            /// 0: flat out.
            interval: u64,
            lag: u64,
            /// The time at which sending ends.
            until_ns: u64,
        }
        /// One packet of a round.
        struct GenerateSlot = "generate_slot" {
            head: [u8; GENERATE_HEAD_MAX as usize],
            /// Its length less that of the longest frame: at most 0.
            shorter: i32,
            /// Sequence number in the first round.
            sequence: u32,
            /// Sum of what the checksum covers, without sequence and time; its complement is the field.
            sum: u32,
            pad: u32,
        }
    }
    "weir/steer.h" {
        /// How many prefixes of either family have routes that only the kernel can follow, and SPIs only the kernel opens.
        struct Kept = "kept" {
            v4: u64,
            v6: u64,
            spis: u64,
        }
        /// What the router decided about a pair of addresses, or about one flow of them, as they come in by one queue.
        struct Flow = "flow" {
            /// Generation of the tables it was decided by.
            generation: u64,
            in_ifindex: u32,
            out_ifindex: u32,
            /// MTU of the outgoing port, in bytes of IP.
            mtu: u32,
            out_device: u32,
            in_mac: [u8; 6],
            /// The tag they leave with, as it stands in a frame; 0: none.
            tag: [u8; 2],
            /// Destination and source, as they leave.
            out_macs: [u8; 12],
            in_device: u32,
            /// Number of its last frame that went to the router; 0: none is known.
            last_slow: u64,
            /// Where the router's socket sends.
            out_queue: u16,
            /// Queues of the far end, where its choice of one follows the CPU; 0: it does not.
            out_queues: u16,
            /// 0: without a tag.
            in_vlan: u16,
            /// [`FLOW_SPREAD`], [`FLOW_ENFORCED`].
            flags: u16,
            /// Ports of a flow, as they stand in a packet, 0 without.
            ports: [u8; 4],
            protocol: u16,
            /// Queue it comes in by.
            queue: u16,
            /// Numbers that policies count it under; 0: none does.
            in_policy: u16,
            out_policy: u16,
            pad: u32,
        }
        /// What decisions hold under.
        struct InForce = "tables" {
            /// Generation of the tables in force.
            generation: u64,
            /// When nobody follows policies any more, in nanoseconds of `CLOCK_MONOTONIC`.
            policies_until: u64,
        }
        /// A pair of addresses over IPv4, or one flow of it; addresses and ports in network order.
        struct FlowKey4 = "flow_key4" {
            source: [u8; 4],
            destination: [u8; 4],
            /// The queue of a pair, or a number of [`FLOW_WHICH`] and above that few flows share.
            which: u32,
        }
        /// The same over IPv6.
        struct FlowKey6 = "flow_key6" {
            source: [u8; 16],
            destination: [u8; 16],
            which: u32,
        }
        /// How packets of one direction of a tracked flow arrive, over IPv4; addresses and ports in network order.
        struct TrackedKey4 = "tracked_key4" {
            source: [u8; 4],
            destination: [u8; 4],
            ports: [u8; 4],
            in_ifindex: u32,
            protocol: u16,
            /// 0: without a tag.
            vlan: u16,
        }
        /// The same over IPv6.
        struct TrackedKey6 = "tracked_key6" {
            source: [u8; 16],
            destination: [u8; 16],
            ports: [u8; 4],
            in_ifindex: u32,
            protocol: u16,
            vlan: u16,
        }
        /// How packets of one direction of a tracked flow leave.
        struct TrackedWay = "tracked" {
            flow: u32,
            /// 1: the direction of answers.
            reply: u32,
            out_ifindex: u32,
            mtu: u32,
            in_device: u32,
            out_device: u32,
            /// What the header's checksum changes by, TTL included, as words lie in a packet.
            ip_delta: u32,
            transport_delta: u32,
            in_mac: [u8; 6],
            /// The tag they leave with, as it stands in a frame; 0: none.
            tag: [u8; 2],
            out_macs: [u8; 12],
            ports: [u8; 4],
            source: [u8; 16],
            destination: [u8; 16],
        }
        /// Both directions of a tracked flow: whether it is in force, and what passed.
        struct TrackedFlow = "tracked_flow" {
            generation: u64,
            original_packets: u64,
            original_bytes: u64,
            reply_packets: u64,
            reply_bytes: u64,
            /// Segments that were left to the kernel and that it may take for a RST of the flow.
            resets: u64,
            pad: [u8; 16],
        }
        /// What one device received and sent without the router, on one CPU.
        struct FlowCounters = "flow_counters" {
            rx_packets: u64,
            rx_bytes: u64,
            tx_packets: u64,
            tx_bytes: u64,
        }
        /// What the program and the worker of one queue tell each other, a cache line each.
        struct FlowProgress = "flow_progress" {
            /// The number given last.
            steered: u64,
            /// CPU where that was.
            cpu: u64,
            pad: [u8; 48],
            /// Every frame up to this number has left the router, or is lost.
            done: u64,
            pad2: [u8; 56],
            /// The longest frame that a front still fits before, in its buffer; 0: none is put.
            front_room: u64,
            /// 48 bits nobody outside knows.
            front_mark: u64,
            /// Numbers go into a front even where there is metadata, for tests.
            front_always: u64,
            pad3: [u8; 40],
        }
    }
    "weir/tally.h" {
        /// Where the mark of a test packet is, and what must stand before it.
        struct TallyParams = "tally_params" {
            /// The ethertype is in network byte order.
            ethertype: [u8; 2],
            /// The mark is in network byte order.
            magic: [u8; 2],
            protocol_at: u16,
            mark_at: u16,
            protocol: u32,
            /// There are at most [`TALLY_FLOWS_MAX`] flows.
            flows: u32,
        }
        /// Everything `tally` counts but latencies.
        struct TallyState = "tally_state" {
            run: u8,
            pad: [u8; 7],
            delivered: u64,
            duplicated: u64,
            reordered: u64,
            beyond_memory: u64,
            foreign: u64,
            last_ns: u64,
        }
        /// What `tally` remembers of a flow.
        struct TallyFlow = "tally_flow" {
            next: u32,
            pad: u32,
            seen: u64,
        }
    }
    "weir/transmit.h" {
        /// What a worker tells `transmit` before a call, and what became of it.
        struct TransmitState = "transmit_state" {
            ifindex: u32,
            /// Slots that are filled.
            count: u32,
            /// Bytes each live frame begins with.
            longest: u32,
            /// Slots read so far.
            next: u32,
            /// Where the call runs, plus one; 0: no call.
            cpu: u32,
            /// Frames the device took.
            taken: u32,
            /// Frames it did not take.
            refused: u32,
            /// The device's last answer, if it was an error.
            error: i32,
        }
        /// One frame to send.
        struct TransmitSlot = "transmit_slot" {
            len: u32,
            pad: [u8; 12],
            frame: [u8; TRANSMIT_FRAME_MAX as usize],
        }
    }
}

macro_rules! constants {
    ($($header:literal { $($(#[$doc:meta])* $name:ident = $value:expr;)* })*) => {
        $($($(#[$doc])* pub const $name: u32 = $value;)*)*

        /// (header, name, value) of every number C and Rust share.
        pub const CONSTANTS: &[(&str, &str, u32)] = &[$($(($header, stringify!($name), $name),)*)*];
    };
}

constants! {
    "weir/generate.h" {
        /// Bytes at the front of a frame that each packet writes anew.
        GENERATE_HEAD_MAX = 96;
        /// A field the frames do not have.
        GENERATE_NONE = 0xffff;
        /// Times are kept in 1/16 ns.
        GENERATE_TIME_SHIFT = 4;
    }
    "weir/steer.h" {
        STEER_KERNEL = 1;
        STEER_WEIR = 2;
        STEER_KERNEL_BUT_ESP = 3;
        STEER_CAUSES = 11;
        ENFORCE_TRANSIT = 0;
        ENFORCE_OPAQUE = 1;
        /// Local addresses of one family.
        STEER_LOCAL_MAX = 4096;
        /// Prefixes of one family whose routes only the kernel can follow.
        STEER_KEPT_MAX = 1 << 16;
        STEER_ESP_PORTS_MAX = 1024;
        /// SPIs of SAs that only the kernel opens.
        STEER_SPIS_MAX = 1 << 16;
        STEER_QUEUES_MAX = 256;
        /// Pairs of addresses of one family.
        FLOWS_MAX = 1 << 16;
        FLOW_DEVICES_MAX = 256;
        /// Receive queues of a device whose frames may take the flow offload.
        FLOW_QUEUES_MAX = 64;
        /// Set in the word of a key that is a flow's.
        FLOW_WHICH = 0x8000_0000;
        FLOW_WHICH_FACTOR = 0x9e37_79b1;
        /// The flag of a pair of addresses whose flows have entries of their own.
        FLOW_SPREAD = 1;
        /// The flag of what policies let pass.
        FLOW_ENFORCED = 2;
        /// Counters of what is offloaded: of each device, and behind them of VLANs that have their own and of policies.
        FLOW_COUNTS_MAX = 512;
        /// Flows of the kernel's conntrack that are forwarded here.
        TRACKED_MAX = 1 << 17;
        /// Places of one family where their packets come in: two of each flow, more where answers come in by several next hops.
        TRACKED_WAYS_MAX = 1 << 19;
        FRONT_LEN = 14;
    }
    "weir/tally.h" {
        /// Flows of one tally: 2^17 × 16 B = 2 MiB.
        TALLY_FLOWS_MAX = 1 << 17;
        /// Numbers each flow remembers.
        TALLY_WINDOW = 64;
        /// 64 buckets to each power of two.
        TALLY_BUCKET_BITS = 6;
        TALLY_BUCKETS = (34 - TALLY_BUCKET_BITS + 1) << TALLY_BUCKET_BITS;
    }
    "weir/transmit.h" {
        /// Frames of one call.
        TRANSMIT_SLOTS = 64;
        /// Bytes of the longest frame.
        TRANSMIT_FRAME_MAX = 2032;
    }
}

/// A C file that compiles if the headers say what is said here.
pub fn check() -> String {
    let mut c = String::from("#include <stddef.h>\n");
    let mut headers: Vec<&str> = STRUCTS.iter().map(|s| s.header).collect();
    headers.extend(CONSTANTS.iter().map(|c| c.0));
    headers.sort_unstable();
    headers.dedup();
    for header in headers {
        c += &format!("#include \"{header}\"\n");
    }
    let mut equal = |what: &str, left: String, right: usize| {
        c += &format!("_Static_assert({left} == {right}, \"{what}: src/layout.rs has {right}\");\n");
    };
    for Shared { name, size, fields, .. } in STRUCTS {
        equal(&format!("size of struct {name}"), format!("sizeof(struct {name})"), *size);
        for (field, at, width) in *fields {
            let what = format!("struct {name}, {field}");
            equal(&format!("offset of {what}"), format!("offsetof(struct {name}, {field})"), *at);
            equal(&format!("width of {what}"), format!("sizeof(((struct {name} *)0)->{field})"), *width);
        }
    }
    for (_, name, value) in CONSTANTS {
        equal(name, name.to_string(), *value as usize);
    }
    c
}
