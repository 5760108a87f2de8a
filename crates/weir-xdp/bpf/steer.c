// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * steer: shares a device between weir and the kernel.
 *
 *   frame -- too short, not IP -------------------------------> kernel
 *         |- ARP ---- for an address of weir -----------------> weir,   else kernel
 *         |- multicast, broadcast -- NS for one of weir's ----> weir,   else kernel
 *         |- a pair of addresses the router decided on -------> out     (flow offload)
 *         |- to an address the kernel owns -- ESP for weir ---> weir,   else kernel
 *         |- to a prefix whose route only the kernel follows -> kernel
 *         `- anything else (transit, weir's own) -------------> the queue's socket, without one kernel
 *
 * Every frame is counted under one cause, but for those of the flow offload, which has counters of its own.
 */
#include "weir/flow_offload.h"
#include "weir/tracked.h"
#include "weir/local.h"

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

/* Keyed by the port's bytes in network order. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, STEER_ESP_PORTS_MAX);
} weir_esp_ports SEC(".maps");

/* Keyed by the SPI's bytes in network order. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, STEER_SPIS_MAX);
} weir_kept_spis SEC(".maps");

/* How many prefixes and SPIs there are: an empty map is not asked. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct kept);
	__uint(max_entries, 1);
} weir_kept SEC(".maps");

struct kept kept VALUE_OF(weir_kept);

/* ESP to where an SA of weir ends; its SPI is there, if it has one, and 0 is none. */
static __always_inline enum steer_cause esp(const struct frame *frame, const void *at, __u32 *spi)
{
	if (within(frame, at, 4))
		*spi = load32(at);
	return STEER_ESP;
}

/* RFC 3948 2.2: ESP has an SPI where IKE has a marker of four zeros; less than an SPI and a number is neither. */
static __always_inline enum steer_cause esp_in_udp(const struct frame *frame, const void *udp, __u32 *spi)
{
	if (!within(frame, udp, 8 + 8) || bpf_ntohs(load16(udp + 4)) < 8 + 8 || !load32(udp + 8))
		return STEER_LOCAL;
	__u32 port = load16(udp + 2);

	*spi = load32(udp + 8);
	return bpf_map_lookup_elem(&weir_esp_ports, &port) ? STEER_ESP : STEER_LOCAL;
}

/* The longest prefix says whether the kernel keeps an address that is not local. */
struct kept4_key {
	__u32 bits;
	__be32 address;
};

struct kept6_key {
	__u32 bits;
	__u32 address[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct kept4_key);
	__type(value, __u32);
	__uint(max_entries, STEER_KEPT_MAX);
} weir_kept4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct kept6_key);
	__type(value, __u32);
	__uint(max_entries, STEER_KEPT_MAX);
} weir_kept6 SEC(".maps");

static __always_inline enum steer_cause kept4(__be32 address)
{
	if (!kept.v4)
		return STEER_TRANSIT;
	struct kept4_key key = { .bits = 32, .address = address };
	__u32 *keeper = bpf_map_lookup_elem(&weir_kept4, &key);

	return keeper && *keeper == STEER_KERNEL ? STEER_KEPT : STEER_TRANSIT;
}

static __always_inline enum steer_cause kept6(const void *address)
{
	if (!kept.v6)
		return STEER_TRANSIT;
	struct kept6_key key = {
		.bits = 128,
		.address = { load32(address), load32(address + 4), load32(address + 8), load32(address + 12) },
	};
	__u32 *keeper = bpf_map_lookup_elem(&weir_kept6, &key);

	return keeper && *keeper == STEER_KERNEL ? STEER_KEPT : STEER_TRANSIT;
}

static __always_inline enum steer_cause steer4(const struct frame *frame, const struct iphdr *ip, __u32 *spi)
{
	if (group4(ip->daddr))
		return STEER_GROUP;
	__u32 *owner = find4(ip->daddr);

	if (!owner)
		return kept4(ip->daddr);
	if (*owner == STEER_KERNEL)
		return STEER_LOCAL;
	if (*owner != STEER_KERNEL_BUT_ESP)
		return STEER_TRANSIT;
	const void *behind = (const void *)ip + 4 * (*(const __u8 *)ip & 0x0f);

	/* Of fragments only the first has a port, or an SPI. */
	if (ip->frag_off & bpf_htons(0x3fff))
		return ip->protocol == IPPROTO_ESP ? STEER_ESP : STEER_LOCAL;
	if (ip->protocol == IPPROTO_ESP)
		return esp(frame, behind, spi);
	return ip->protocol == IPPROTO_UDP ? esp_in_udp(frame, behind, spi) : STEER_LOCAL;
}

static __always_inline enum steer_cause steer6(const struct frame *frame, const struct ipv6hdr *ip, __u32 *spi)
{
	if (ip->daddr.s6_addr[0] == 0xff)
		return STEER_GROUP;
	__u32 *owner = find6(&ip->daddr);

	if (!owner)
		return kept6(&ip->daddr);
	if (*owner == STEER_KERNEL)
		return STEER_LOCAL;
	if (*owner != STEER_KERNEL_BUT_ESP)
		return STEER_TRANSIT;
	/* Else clang would keep what follows in memory since the comparison of the header's length. */
	barrier_var(ip);
	const void *behind = ip + 1;

	if (ip->nexthdr == IPPROTO_ESP)
		return esp(frame, behind, spi);
	if (ip->nexthdr == IPPROTO_UDP)
		return esp_in_udp(frame, behind, spi);
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

static __noinline __u32 classify_rare4(struct xdp_md *ctx, struct flow *flow, int *action);
static __noinline __u32 classify_rare6(struct xdp_md *ctx, struct flow *flow, int *action);

/* Why the frame goes where it goes; STEER_CAUSES for one that was offloaded, with `action` to return. */
static __always_inline enum steer_cause classify(struct xdp_md *ctx, bool flow_offload, int *action)
{
	struct frame frame;
	enum steer_cause cause;
	__u32 spi = 0;

	if (!parse_ethernet(ctx, &frame))
		return STEER_SHORT;
	/* clang keeps this order and each jump taken costs time: first what there is most of. */
	if (frame.ethertype == bpf_htons(ETH_P_IP) && !frame.group) {
		/* A header cut short is weir's to count. */
		if (!within(&frame, frame.l3, sizeof(struct iphdr)))
			return STEER_TRANSIT;
		if (flow_offload) {
			struct flow *rare = NULL;
			enum offloaded offloaded = offload4(ctx, &frame, frame.l3, &rare, action);

			if (offloaded == OFFLOAD_RARE)
				return classify_rare4(ctx, rare, action);
			if (offloaded == OFFLOAD_OUT)
				return STEER_CAUSES;
		}
		cause = steer4(&frame, frame.l3, &spi);
		goto ip;
	}
	if (frame.ethertype == bpf_htons(ETH_P_IPV6) && !frame.group) {
		if (!within(&frame, frame.l3, sizeof(struct ipv6hdr)))
			return STEER_TRANSIT;
		if (flow_offload) {
			struct flow *rare = NULL;
			enum offloaded offloaded = offload6(ctx, &frame, frame.l3, &rare, action);

			if (offloaded == OFFLOAD_RARE)
				return classify_rare6(ctx, rare, action);
			if (offloaded == OFFLOAD_OUT)
				return STEER_CAUSES;
		}
		cause = steer6(&frame, frame.l3, &spi);
		goto ip;
	}
	if (frame.ethertype == bpf_htons(ETH_P_ARP))
		return arp(&frame);
	if (frame.group)
		return solicitation(&frame);
	return STEER_NOT_IP;
ip:
	/* What only the kernel opens is its own. */
	if (cause == STEER_ESP && kept.spis && bpf_map_lookup_elem(&weir_kept_spis, &spi))
		return STEER_LOCAL;
	return cause;
}

static __always_inline __u32 after_rare(struct xdp_md *ctx, enum offloaded offloaded, int *action)
{
	if (offloaded == OFFLOAD_OUT)
		return STEER_CAUSES;
	return offloaded == OFFLOAD_WORKER ? STEER_TRANSIT : classify(ctx, false, action);
}

static __noinline __u32 classify_rare4(struct xdp_md *ctx, struct flow *flow, int *action)
{
	return after_rare(ctx, offload_rare4(ctx, flow, action), action);
}

static __noinline __u32 classify_rare6(struct xdp_md *ctx, struct flow *flow, int *action)
{
	return after_rare(ctx, offload_rare6(ctx, flow, action), action);
}

static __always_inline int steer(struct xdp_md *ctx, bool flow_offload)
{
	int action = XDP_PASS;
	__u32 cause = classify(ctx, flow_offload, &action);
	__u64 *count;

	if (cause == STEER_CAUSES)
		return action;
	if (cause <= STEER_RESOLVE) {
		__u32 front = flow_offload ? number(ctx) : 0;

		/* Without a socket on this queue: XDP_PASS. */
		action = bpf_redirect_map(&weir_xsks, ctx->rx_queue_index, XDP_PASS);
		if (action != XDP_REDIRECT) {
			cause = STEER_NO_SOCKET;
			/* The kernel gets what came, or nothing. */
			if (front && bpf_xdp_adjust_head(ctx, FRONT_LEN))
				action = XDP_DROP;
		}
	}
	count = bpf_map_lookup_elem(&weir_counters, &cause);
	if (count)
		++*count;
	return action;
}

SEC("xdp")
int weir_steer(struct xdp_md *ctx)
{
	return steer(ctx, false);
}

/* Of a device whose frames may take the flow offload. */
SEC("xdp")
int weir_steer_flow(struct xdp_md *ctx)
{
	return steer(ctx, true);
}

/*
 * Of a device whose firewall stays the kernel's: flows the kernel's conntrack has established, and that were found to
 * meet no more rules, are forwarded here, translated; everything else is the kernel's.
 */
SEC("xdp")
int weir_steer_tracked(struct xdp_md *ctx)
{
	int action = XDP_PASS;
	__u64 *count;

	if (tracked(ctx, &action))
		return action;
	left_to_kernel(ctx);
	__u32 cause = classify(ctx, false, &action);

	if (cause <= STEER_RESOLVE)
		cause = STEER_CONNTRACK;
	count = bpf_map_lookup_elem(&weir_counters, &cause);
	if (count)
		++*count;
	return XDP_PASS;
}
