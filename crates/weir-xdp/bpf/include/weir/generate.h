/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What `generate` shares with the process that drives it; src/layout.rs has the same in Rust. */
#ifndef WEIR_GENERATE_H
#define WEIR_GENERATE_H

#include <linux/types.h>

/* Ethernet, VLAN tag, IPv6, UDP and an 18-byte mark are 84. */
#define GENERATE_HEAD_MAX 96

/* A field the frames do not have. */
#define GENERATE_NONE 65535

/* Times are kept in 1/16 ns, so that 3 Mpps is 333.3 ns and not 333: 2^60 ns are 36 years of uptime. */
#define GENERATE_TIME_SHIFT 4

/* What all frames have in common. Set before the program is loaded. */
struct generate_params {
	__u32 ifindex;
	__u32 stride; /* how much higher every sequence number is in the next round */
	__u32 slots;
	__u16 head; /* bytes written of each frame, even */
	__u16 sequence_at;
	__u16 time_at;
	__u16 checksum_at;
	__u32 adjust; /* frames differ in length */
};

struct generate_state {
	__u32 cursor;
	__u32 round;
	__u64 sent;
	__u64 next;     /* when the next frame is due */
	__u64 interval; /* 0: flat out */
	__u64 lag;      /* what is caught up at most */
	__u64 until_ns; /* nothing is sent from here on */
};

/* One packet of a round. */
struct generate_slot {
	__u8 head[GENERATE_HEAD_MAX];
	__s32 shorter; /* than the longest frame: at most 0 */
	__u32 sequence; /* in the first round */
	__u32 sum; /* of the checksum field's complement */
	__u32 pad;
};

#endif
