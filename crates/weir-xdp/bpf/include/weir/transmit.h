/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What `transmit` shares with the worker that drives it; src/layout.rs has the same in Rust. */
#ifndef WEIR_TRANSMIT_H
#define WEIR_TRANSMIT_H

#include <linux/types.h>

/* Frames of one call: a batch. */
#define TRANSMIT_SLOTS 64

/* The longest frame: a slot is 2 KiB. */
#define TRANSMIT_FRAME_MAX 2032

/* Written by the worker before a call, and by the programs during it. */
struct transmit_state {
	__u32 ifindex; /* where the frames go */
	__u32 count;   /* slots that are filled */
	__u32 longest; /* what each live frame begins with, bytes */
	__u32 next;    /* slots read so far */
	__u32 cpu;     /* where the call runs, plus one; 0: no call */
	__u32 taken;   /* frames the device took */
	__u32 refused; /* frames it did not take, and the kernel freed */
	__s32 error;   /* the device's last answer to a bulk, if it was one */
};

/* One frame. */
struct transmit_slot {
	__u32 len;
	__u8 pad[12];
	__u8 frame[TRANSMIT_FRAME_MAX];
};

#endif
