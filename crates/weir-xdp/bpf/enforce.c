// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * enforce: a policy enforcement point. Keeps transit of a port from the kernel's stack, behind XDP and packet
 * sockets; it stays when the daemon is gone.
 *
 *   frame -- for another host's MAC, broadcast, multicast, not IP -> kernel
 *         |- more than one VLAN tag, MPLS -----------------------> dropped, counted as opaque
 *         |- to a group or an address the kernel owns -----------> kernel
 *         `- anything else --------------------------------------> dropped, counted as transit
 */
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>

#include "weir/local.h"

WEIR_LICENSE;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, ENFORCE_DROPS);
} weir_enforced SEC(".maps");

static __always_inline int drop(enum enforce_drop why)
{
	__u32 key = why;
	__u64 *count = bpf_map_lookup_elem(&weir_enforced, &key);

	if (count)
		++*count;
	return TC_ACT_SHOT;
}

static __always_inline bool kernels(__u32 owner)
{
	return owner == STEER_KERNEL || owner == STEER_KERNEL_BUT_ESP;
}

/* A copy: what the kernel has of the frame may not lie in one piece. */
static __always_inline bool destination(struct __sk_buff *skb, __u32 at, void *to, __u32 length)
{
	return !bpf_skb_load_bytes_relative(skb, at, to, length, BPF_HDR_START_NET);
}

SEC("classifier")
int weir_enforce(struct __sk_buff *skb)
{
	struct in6_addr to6 __attribute__((aligned(8))); /* read by halves */
	__be32 to4;

	/* ip_forward and ip6_forward take nothing else. */
	if (skb->pkt_type != PACKET_HOST)
		return TC_ACT_UNSPEC;
	switch (skb->protocol) {
	case bpf_htons(ETH_P_IP):
		/* A header without a destination is nobody's. */
		if (!destination(skb, offsetof(struct iphdr, daddr), &to4, sizeof(to4)))
			return drop(ENFORCE_TRANSIT);
		if (group4(to4) || kernels(owner4(to4)))
			return TC_ACT_UNSPEC;
		return drop(ENFORCE_TRANSIT);
	case bpf_htons(ETH_P_IPV6):
		if (!destination(skb, offsetof(struct ipv6hdr, daddr), &to6, sizeof(to6)))
			return drop(ENFORCE_TRANSIT);
		if (to6.s6_addr[0] == 0xff || kernels(owner6(&to6)))
			return TC_ACT_UNSPEC;
		return drop(ENFORCE_TRANSIT);
	/* The kernel has taken the first tag off: this is a second one. */
	case bpf_htons(ETH_P_8021Q):
	case bpf_htons(ETH_P_8021AD):
	case bpf_htons(ETH_P_MPLS_UC):
	case bpf_htons(ETH_P_MPLS_MC):
		return drop(ENFORCE_OPAQUE);
	default:
		return TC_ACT_UNSPEC;
	}
}
