// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * steer: shares a device between weir and the kernel.
 *
 *   frame -- too short, not IP -------------------------------> kernel
 *         |- ARP ---- for an address of weir -----------------> weir,   else kernel
 *         |- multicast, broadcast -- NS for one of weir's ----> weir,   else kernel
 *         |- a pair of addresses the router decided on -------> out     (flow offload)
 *         |- to an address the kernel owns -- ESP for weir ---> weir,   else kernel
 *         `- anything else (transit, weir's own) -------------> the queue's socket, without one kernel
 *
 * Every frame is counted under one cause, but for those of the flow offload, which has counters of its own.
 */
#include "weir/flow_offload.h"

WEIR_LICENSE;

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, STEER_QUEUES_MAX);
} weir_xsks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, STEER_CAUSES);
} weir_counters SEC(".maps");

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

/* Keyed by the port's bytes in network order. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, STEER_ESP_PORTS_MAX);
} weir_esp_ports SEC(".maps");

static __always_inline __u32 owner4(__be32 address)
{
	__u32 *owner = bpf_map_lookup_elem(&weir_local4, &address);

	return owner ? *owner : STEER_NOBODY;
}

/* By halves: behind Ethernet an address is aligned to two bytes. */
static __always_inline __u32 owner6(const void *address)
{
	__u64 key[2] = { load64(address), load64(address + 8) };
	__u32 *owner = bpf_map_lookup_elem(&weir_local6, key);

	return owner ? *owner : STEER_NOBODY;
}

/* RFC 3948 2.2: ESP has an SPI where IKE has a marker of four zeros; less than an SPI and a number is neither. */
static __always_inline enum steer_cause esp_in_udp(const struct frame *frame, const void *udp)
{
	if (!within(frame, udp, 8 + 8) || bpf_ntohs(load16(udp + 4)) < 8 + 8 || !load32(udp + 8))
		return STEER_LOCAL;
	__u32 port = load16(udp + 2);

	return bpf_map_lookup_elem(&weir_esp_ports, &port) ? STEER_ESP : STEER_LOCAL;
}

static __always_inline enum steer_cause steer4(const struct frame *frame, const struct iphdr *ip)
{
	__u8 first = *(const __u8 *)&ip->daddr;

	/* 224.0.0.0/4 and 255.255.255.255; the rest of 240.0.0.0/4 the kernel would forward. */
	if (first >= 0xe0 && (first < 0xf0 || ip->daddr == 0xffffffff))
		return STEER_GROUP;
	__u32 owner = owner4(ip->daddr);

	if (owner == STEER_KERNEL)
		return STEER_LOCAL;
	if (owner != STEER_KERNEL_BUT_ESP)
		return STEER_TRANSIT;
	if (ip->protocol == IPPROTO_ESP)
		return STEER_ESP;
	/* Of fragments only the first has a port. */
	if (ip->protocol != IPPROTO_UDP || ip->frag_off & bpf_htons(0x3fff))
		return STEER_LOCAL;
	return esp_in_udp(frame, (const void *)ip + 4 * (*(const __u8 *)ip & 0x0f));
}

static __always_inline enum steer_cause steer6(const struct frame *frame, const struct ipv6hdr *ip)
{
	const void *behind = ip + 1;

	if (ip->daddr.s6_addr[0] == 0xff)
		return STEER_GROUP;
	__u32 owner = owner6(&ip->daddr);

	if (owner == STEER_KERNEL)
		return STEER_LOCAL;
	if (owner != STEER_KERNEL_BUT_ESP)
		return STEER_TRANSIT;
	if (ip->nexthdr == IPPROTO_ESP)
		return STEER_ESP;
	if (ip->nexthdr == IPPROTO_UDP)
		return esp_in_udp(frame, behind);
	if (ip->nexthdr != IPPROTO_FRAGMENT || !within(frame, behind, 8))
		return STEER_LOCAL;
	return *(const __u8 *)behind == IPPROTO_ESP ? STEER_ESP : STEER_LOCAL;
}

/* RFC 826: the target protocol address is at 24. */
static __always_inline enum steer_cause arp(const struct frame *frame)
{
	if (!within(frame, frame->l3, 28) || owner4(load32(frame->l3 + 24)) != STEER_WEIR)
		return STEER_ARP;
	return STEER_RESOLVE;
}

/* RFC 4861 4.3: type 135, the target at 8 of the message. */
static __always_inline enum steer_cause solicitation(const struct frame *frame)
{
	const struct ipv6hdr *ip = frame->l3;
	const void *message = ip + 1;

	if (frame->ethertype != bpf_htons(ETH_P_IPV6) || !within(frame, ip, sizeof(*ip) + 24))
		return STEER_GROUP;
	if (ip->nexthdr != IPPROTO_ICMPV6 || *(const __u8 *)message != 135)
		return STEER_GROUP;
	return owner6(message + 8) == STEER_WEIR ? STEER_RESOLVE : STEER_GROUP;
}

SEC("xdp")
int weir_steer(struct xdp_md *ctx)
{
	int action = XDP_PASS;
	enum steer_cause cause;
	struct frame frame;

	if (!parse_ethernet(ctx, &frame)) {
		cause = STEER_SHORT;
	} else if (frame.ethertype == bpf_htons(ETH_P_ARP)) {
		cause = arp(&frame);
	} else if (frame.group) {
		cause = solicitation(&frame);
	} else if (frame.ethertype == bpf_htons(ETH_P_IP)) {
		/* A header cut short is weir's to count. */
		cause = STEER_TRANSIT;
		if (within(&frame, frame.l3, sizeof(struct iphdr))) {
			if (params.flow_offload) {
				action = offload4(ctx, &frame, frame.l3);
				if (action != XDP_PASS)
					return action;
			}
			cause = steer4(&frame, frame.l3);
		}
	} else if (frame.ethertype == bpf_htons(ETH_P_IPV6)) {
		cause = STEER_TRANSIT;
		if (within(&frame, frame.l3, sizeof(struct ipv6hdr))) {
			if (params.flow_offload) {
				action = offload6(ctx, &frame, frame.l3);
				if (action != XDP_PASS)
					return action;
			}
			cause = steer6(&frame, frame.l3);
		}
	} else {
		cause = STEER_NOT_IP;
	}

	if (cause <= STEER_RESOLVE) {
		if (params.flow_offload)
			number(ctx);
		/* Without a socket on this queue: XDP_PASS. */
		action = bpf_redirect_map(&weir_xsks, ctx->rx_queue_index, XDP_PASS);
		if (action != XDP_REDIRECT)
			cause = STEER_NO_SOCKET;
	}
	__u32 key = cause;
	__u64 *count = bpf_map_lookup_elem(&weir_counters, &key);

	if (count)
		++*count;
	return action;
}
