/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What every program here starts with: the kernel's own types and helpers, and loads from a frame.
 *
 * A program reads nothing of a frame before it compared with the frame's end; the verifier insists.
 */
#ifndef WEIR_XDP_H
#define WEIR_XDP_H

#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/*
 * Where no helper asks for the GPL. One that does (bpf_trace_printk, say) makes the kernel refuse the program, by name.
 */
#define WEIR_LICENSE char _license[] SEC("license") = "MIT OR Apache-2.0"

/* Where one does: the file's first line offers the GPL too, and this is how the kernel reads that. */
#define WEIR_LICENSE_OR_GPL char _license[] SEC("license") = "Dual MIT/GPL"

/*
 * What is set before a program is loaded. Rodata and bss become maps called as their section is, of which
 * `bpftool map` shows 15 characters; the verifier knows rodata's values and drops the branches they rule out.
 */
#define CONSTANTS const volatile

/*
 * A variable that is the one value of a map: read and written without a look-up. The section alone would be
 * a map of its own, which nobody could share or map into memory; the loader puts the named one in its place.
 */
#define VALUE_OF(map) SEC(".bss." #map)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "same_mac takes a word apart");

#define FRAME_START(ctx) ((void *)(long)(ctx)->data)
#define FRAME_END(ctx) ((void *)(long)(ctx)->data_end)

/*
 * BPF has no conditional move: clang turns a small `if` into one move after another, each with a branch
 * of its own. This keeps it one branch. Where it stands it was measured.
 */
#define KEEP_BRANCH asm volatile("")

/*
 * Behind 14 bytes of Ethernet no field is aligned to more than two. Where BPF is compiled to machine
 * code that costs nothing, but a packed struct would make clang load byte by byte.
 */
static __always_inline __u16 load16(const void *at)
{
	return *(const __u16 *)at;
}

static __always_inline __u32 load32(const void *at)
{
	return *(const __u32 *)at;
}

static __always_inline __u64 load64(const void *at)
{
	return *(const __u64 *)at;
}

static __always_inline void store16(void *at, __u16 value)
{
	*(__u16 *)at = value;
}

static __always_inline void store32(void *at, __u32 value)
{
	*(__u32 *)at = value;
}

static __always_inline void store64(void *at, __u64 value)
{
	*(__u64 *)at = value;
}

#endif
