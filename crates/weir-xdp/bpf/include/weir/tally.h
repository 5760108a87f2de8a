/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What `tally` shares with the process that reads it; src/layout.rs has the same in Rust. */
#ifndef WEIR_TALLY_H
#define WEIR_TALLY_H

#include <linux/types.h>

/* 2^17 flows of 16 bytes: 2 MiB. */
#define TALLY_FLOWS_MAX 131072

/* Numbers a flow remembers: one bit each. */
#define TALLY_WINDOW 64

/*
 * Latency buckets: 64 to each power of two (1.6 % wide), exact below 64 ns, up to 2^34 ns = 17 s:
 * (34 - 6 + 1) * 64.
 */
#define TALLY_BUCKET_BITS 6
#define TALLY_BUCKETS 1856

/* Where the mark of a test packet is, and what must stand before it. Set before the program is loaded. */
struct tally_params {
	__be16 ethertype;
	__be16 magic;
	__u16 protocol_at;
	__u16 mark_at;
	__u32 protocol;
	__u32 flows;
};

struct tally_state {
	__u8 run;
	__u8 pad[7];
	__u64 delivered;
	__u64 duplicated;
	__u64 reordered;
	__u64 beyond_memory;
	__u64 foreign;
	__u64 last_ns;
};

struct tally_flow {
	__u32 next; /* the number after its highest */
	__u32 pad;
	__u64 seen; /* a bit for each of the TALLY_WINDOW numbers before that, the nearest lowest */
};

#endif
