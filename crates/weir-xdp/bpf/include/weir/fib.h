/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What `fib` shares with the process that reads it; src/layout.rs has the same in Rust. */
#ifndef WEIR_FIB_H
#define WEIR_FIB_H

#include <linux/types.h>

/* Routes that say that a packet goes nowhere, on one CPU. */
struct fib_drops {
	__u64 blackhole;
	__u64 unreachable;
	__u64 prohibit;
};

#endif
