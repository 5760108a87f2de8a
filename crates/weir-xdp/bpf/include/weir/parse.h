/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* From the first byte of a frame to its IP header. */
#ifndef WEIR_PARSE_H
#define WEIR_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include "weir/xdp.h"

#define VLAN_TAG 4
#define VLAN_ID 0x0fff

/* A frame while it is looked at. */
struct frame {
	void *l3;  /* behind the Ethernet header and one tag */
	void *end;
	__u32 ethertype; /* in network order; narrower it would be widened at every comparison */
	bool tagged;
	bool group; /* the group bit of the destination MAC address */
};

/* Whether `bytes` more are left at `at`. */
static __always_inline bool within(const struct frame *frame, const void *at, __u64 bytes)
{
	return at + bytes <= frame->end;
}

/* Whether two MAC addresses are equal: one load each, whose last two bytes, the highest, are shifted out. */
static __always_inline bool same_mac(const void *one, const void *other)
{
	return !((load64(one) ^ load64(other)) << 16);
}

/* False when there is not even an Ethernet header. A second tag is left as what it is: not IP. */
static __always_inline bool parse_ethernet(struct xdp_md *ctx, struct frame *frame)
{
	void *start = FRAME_START(ctx);

	frame->end = FRAME_END(ctx);
	if (!within(frame, start, ETH_HLEN))
		return false;
	frame->group = *(__u8 *)start & 1;
	frame->ethertype = load16(start + 12);
	frame->l3 = start + ETH_HLEN;
	frame->tagged = frame->ethertype == bpf_htons(ETH_P_8021Q);
	if (frame->tagged) {
		if (!within(frame, frame->l3, VLAN_TAG))
			return false;
		frame->ethertype = load16(frame->l3 + 2);
		frame->l3 += VLAN_TAG;
	}
	return true;
}

#endif
