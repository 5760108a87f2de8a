/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Whose an address is: the tables all programs of a daemon share. */
#ifndef WEIR_LOCAL_H
#define WEIR_LOCAL_H

#include <linux/in6.h>

#include "weir/steer.h"
#include "weir/xdp.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __be32);
	__type(value, __u32);
	__uint(max_entries, STEER_LOCAL_MAX);
} weir_local4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct in6_addr);
	__type(value, __u32);
	__uint(max_entries, STEER_LOCAL_MAX);
} weir_local6 SEC(".maps");

static __always_inline __u32 *find4(__be32 address)
{
	return bpf_map_lookup_elem(&weir_local4, &address);
}

/* By halves: behind Ethernet an address is aligned to two bytes. */
static __always_inline __u32 *find6(const void *address)
{
	__u64 key[2] = { load64(address), load64(address + 8) };

	return bpf_map_lookup_elem(&weir_local6, key);
}

static __always_inline __u32 owner4(__be32 address)
{
	__u32 *owner = find4(address);

	return owner ? *owner : STEER_NOBODY;
}

static __always_inline __u32 owner6(const void *address)
{
	__u32 *owner = find6(address);

	return owner ? *owner : STEER_NOBODY;
}

/* 224.0.0.0/4 and 255.255.255.255; the rest of 240.0.0.0/4 the kernel would forward. */
static __always_inline bool group4(__be32 address)
{
	__u8 first = *(const __u8 *)&address;

	return first >= 0xe0 && (first < 0xf0 || address == 0xffffffff);
}

#endif
