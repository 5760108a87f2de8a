/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Tracked flows: established flows of the kernel's conntrack, forwarded with their translation.
 *
 *   TTL - 1 | addresses, header checksum | ports, transport checksum | MAC addresses --> redirect
 *
 * What begins or ends a connection, fragments, options, the last hop, too big, unknown: the kernel's. What stands in
 * src/conntrack/translate.rs of weir-core is done here, byte for byte. One VLAN tag is taken off, put on or replaced.
 *
 * A RST that is left to the kernel is counted by its flow: the kernel may shorten the entry's time and tell nobody.
 */
#ifndef WEIR_TRACKED_H
#define WEIR_TRACKED_H

#include "weir/flow_offload.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct tracked_key4);
	__type(value, struct tracked);
	__uint(max_entries, TRACKED_WAYS_MAX);
} weir_tracked4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct tracked_key6);
	__type(value, struct tracked);
	__uint(max_entries, TRACKED_WAYS_MAX);
} weir_tracked6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct tracked_flow);
	__uint(max_entries, TRACKED_MAX);
} weir_tracked SEC(".maps");

/* Until when flows are followed, in nanoseconds of CLOCK_MONOTONIC; the daemon's to write. One that hangs writes nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} weir_followed SEC(".maps");

__u64 followed_until VALUE_OF(weir_followed);

#define TCP_CONTROL 0x07 /* FIN, SYN, RST */
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_LEAST 20
#define UDP_LEAST 8

/* RFC 1624, equation 3. */
static __always_inline __u16 csum_adjust(__u16 check, __u32 delta)
{
	__u32 sum = (__u16)~check + delta;

	return ~((sum & 0xffff) + (sum >> 16));
}

/* A whole segment that neither begins nor ends a connection. */
static __always_inline bool plain_tcp(const struct frame *frame, const __u8 *tcp, __s64 length)
{
	if (!within(frame, tcp, TCP_LEAST) || length < TCP_LEAST)
		return false;
	__s64 header = (tcp[12] >> 4) * 4;

	if (header < TCP_LEAST || header > length)
		return false;
	return !(tcp[13] & TCP_CONTROL) && tcp[13] & TCP_ACK;
}

/* A whole datagram; over IPv6 it has a checksum (RFC 8200 8.1). */
static __always_inline bool plain_udp(const struct frame *frame, const __u8 *udp, __s64 length, bool checked)
{
	if (!within(frame, udp, UDP_LEAST) || length < UDP_LEAST)
		return false;
	__s64 said = bpf_ntohs(load16(udp + 4));

	if (said < UDP_LEAST || said > length)
		return false;
	return !checked || load16(udp + 6);
}

static __always_inline bool plain_transport(const struct frame *frame, const __u8 *l4, __u8 protocol, __s64 length,
					    bool checked)
{
	if (protocol == IPPROTO_TCP)
		return plain_tcp(frame, l4, length);
	if (protocol == IPPROTO_UDP)
		return plain_udp(frame, l4, length, checked);
	return false;
}

/* The flow's way holds for this packet. */
static __always_inline struct tracked_flow *tracked_in_force(const struct tracked *way, const struct extent *extent)
{
	__u32 number = way->flow;
	struct tracked_flow *flow = bpf_map_lookup_elem(&weir_tracked, &number);

	if (!flow || flow->generation != tables.generation || extent->packet > way->mtu)
		return NULL;
	if (bpf_ktime_get_coarse_ns() >= followed_until)
		return NULL;
	return flow;
}

/* Where a frame for this device's address starts, with the tag that it leaves with; NULL: it is not for it, or as it came. */
static __always_inline void *link_header(struct xdp_md *ctx, const struct link *link, struct frame *frame, __u64 headers)
{
	void *mac = frame->l3 - ETH_HLEN;

	if (!(load16(link->tag) | frame->tagged))
		return same_mac(mac, link->in_mac) ? mac : NULL;
	/* There it is, tagged or not; the verifier wants to see it. */
	mac = FRAME_START(ctx);
	if (!within(frame, mac, ETH_HLEN))
		return NULL;
	return same_mac(mac, link->in_mac) ? retag(ctx, link, frame, headers) : NULL;
}

/* Of a transport header that is there: the verifier wants to see that again behind the look-ups. */
static __always_inline void translate_ports(const struct frame *frame, __u8 *l4, const struct tracked *way,
					    __u8 protocol)
{
	if (!within(frame, l4, UDP_LEAST))
		return;
	store32(l4, way->ports);
	if (protocol == IPPROTO_TCP) {
		if (!within(frame, l4, TCP_LEAST))
			return;
		store16(l4 + 16, csum_adjust(load16(l4 + 16), way->transport_delta));
	} else if (load16(l4 + 6)) {
		__u16 check = csum_adjust(load16(l4 + 6), way->transport_delta);

		/* RFC 768: a sum of 0 is written as its other form. */
		store16(l4 + 6, check ? check : 0xffff);
	}
}

/* Counters, MAC addresses, redirect. */
static __always_inline int tracked_leave(struct xdp_md *ctx, const struct tracked *way, struct tracked_flow *flow,
					 void *mac, const struct extent *extent)
{
	__u64 bytes = ETH_HLEN + extent->packet;
	struct flow_count *count;
	__u32 key = 0;

	store64(mac, load64(way->out_macs));
	store32(mac + 8, load32(way->out_macs + 8));
	/* Where a direction comes in by several devices at once some may not be counted; that it moves is what matters. */
	if (way->reply) {
		flow->reply_packets++;
		flow->reply_bytes += extent->packet;
	} else {
		flow->original_packets++;
		flow->original_bytes += extent->packet;
	}
	count = bpf_map_lookup_elem(&weir_flow_count, &key);
	if (count) {
		__u32 in = way->in_device, out = way->out_device;

		if (in < FLOW_COUNTS_MAX) {
			count->device[in].rx_packets++;
			count->device[in].rx_bytes += bytes + extent->padding;
		}
		if (out < FLOW_COUNTS_MAX) {
			count->device[out].tx_packets++;
			count->device[out].tx_bytes += bytes;
		}
	}
	if (extent->padding)
		bpf_xdp_adjust_tail(ctx, -(int)extent->padding);
	return bpf_redirect(way->out_ifindex, 0);
}

static __always_inline bool forward_tracked4(struct xdp_md *ctx, struct frame *frame, __u16 vlan, int *action)
{
	struct iphdr *ip = frame->l3;
	__u8 *l4 = (void *)(ip + 1);
	void *mac;
	struct tracked_flow *flow;
	struct tracked *way;
	struct link link;
	struct extent extent;

	if (!plain4(ip, frame, &extent))
		return false;
	if (!plain_transport(frame, l4, ip->protocol, extent.packet - (__s64)sizeof(*ip), false))
		return false;
	struct tracked_key4 key = {
		.source = load32(&ip->saddr),
		.destination = load32(&ip->daddr),
		.ports = load32(l4),
		.in_ifindex = ctx->ingress_ifindex,
		.protocol = ip->protocol,
		.vlan = vlan,
	};

	way = bpf_map_lookup_elem(&weir_tracked4, &key);
	if (!way)
		return false;
	flow = tracked_in_force(way, &extent);
	if (!flow)
		return false;
	link = (struct link){ way->in_mac, way->tag, way->in_device, way->out_device };
	mac = link_header(ctx, &link, frame, sizeof(*ip));
	if (!mac)
		return false;
	ip = frame->l3;
	l4 = (void *)(ip + 1);
	ip->ttl--;
	ip->check = csum_adjust(ip->check, way->ip_delta);
	store32(&ip->saddr, load32(way->source));
	store32(&ip->daddr, load32(way->destination));
	translate_ports(frame, l4, way, ip->protocol);
	*action = tracked_leave(ctx, way, flow, mac, &extent);
	return true;
}

static __always_inline void copy16(void *to, const void *from)
{
	store64(to, load64(from));
	store64(to + 8, load64(from + 8));
}

static __always_inline bool forward_tracked6(struct xdp_md *ctx, struct frame *frame, __u16 vlan, int *action)
{
	struct ipv6hdr *ip = frame->l3;
	const void *from = &ip->saddr;
	__u8 *l4 = (void *)(ip + 1);
	void *mac;
	struct tracked_flow *flow;
	struct tracked *way;
	struct link link;
	struct extent extent;

	if (!plain6(ip, frame, &extent))
		return false;
	if (!plain_transport(frame, l4, ip->nexthdr, extent.packet - (__s64)sizeof(*ip), true))
		return false;
	struct tracked_key6 key = {
		.source = { load32(from), load32(from + 4), load32(from + 8), load32(from + 12) },
		.destination = { load32(from + 16), load32(from + 20), load32(from + 24), load32(from + 28) },
		.ports = load32(l4),
		.in_ifindex = ctx->ingress_ifindex,
		.protocol = ip->nexthdr,
		.vlan = vlan,
	};

	way = bpf_map_lookup_elem(&weir_tracked6, &key);
	if (!way)
		return false;
	flow = tracked_in_force(way, &extent);
	if (!flow)
		return false;
	link = (struct link){ way->in_mac, way->tag, way->in_device, way->out_device };
	mac = link_header(ctx, &link, frame, sizeof(*ip));
	if (!mac)
		return false;
	ip = frame->l3;
	l4 = (void *)(ip + 1);
	ip->hop_limit--;
	copy16(&ip->saddr, way->source);
	copy16(&ip->daddr, way->destination);
	translate_ports(frame, l4, way, ip->nexthdr);
	*action = tracked_leave(ctx, way, flow, mac, &extent);
	return true;
}

/* Headers between that of IPv6 and TCP which are passed over: hop by hop, routing, fragment, destination. */
#define EXTENSIONS_MAX 4

/* Whether the kernel may take a first fragment, or a whole packet, for a RST: the flags of a fragment may come later. */
static __always_inline bool may_reset(const struct frame *frame, const __u8 *tcp, bool fragment)
{
	if (!within(frame, tcp, 4))
		return false;
	return fragment || (within(frame, tcp, TCP_LEAST) && tcp[13] & TCP_RST);
}

static __always_inline void count_reset(const struct tracked *way)
{
	struct tracked_flow *flow;
	__u32 number;

	if (!way)
		return;
	number = way->flow;
	flow = bpf_map_lookup_elem(&weir_tracked, &number);
	if (flow)
		__sync_fetch_and_add(&flow->resets, 1);
}

static __always_inline void count_reset4(struct xdp_md *ctx, const struct frame *frame, __u16 vlan)
{
	const struct iphdr *ip = frame->l3;
	const __u8 *tcp = frame->l3 + 4 * (*(const __u8 *)ip & 0x0f);

	if (ip->protocol != IPPROTO_TCP || ip->frag_off & bpf_htons(0x1fff))
		return;
	if (!may_reset(frame, tcp, ip->frag_off & bpf_htons(0x2000)))
		return;
	struct tracked_key4 key = {
		.source = load32(&ip->saddr),
		.destination = load32(&ip->daddr),
		.ports = load32(tcp),
		.in_ifindex = ctx->ingress_ifindex,
		.protocol = IPPROTO_TCP,
		.vlan = vlan,
	};

	count_reset(bpf_map_lookup_elem(&weir_tracked4, &key));
}

static __always_inline void count_reset6(struct xdp_md *ctx, const struct frame *frame, __u16 vlan)
{
	const struct ipv6hdr *ip = frame->l3;
	const void *from = &ip->saddr;
	const __u8 *at = (const void *)(ip + 1);
	__u8 next = ip->nexthdr;
	bool fragment = false;

	for (int header = 0; header < EXTENSIONS_MAX && next != IPPROTO_TCP; header++) {
		if (!within(frame, at, 8))
			return;
		__u64 length = 8;

		if (next == IPPROTO_FRAGMENT) {
			if (load16(at + 2) & bpf_htons(0xfff8))
				return;
			fragment = true;
		} else if (next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_DSTOPTS) {
			length += 8 * at[1];
		} else {
			return;
		}
		next = at[0];
		at += length;
	}
	if (next != IPPROTO_TCP || !may_reset(frame, at, fragment))
		return;
	struct tracked_key6 key = {
		.source = { load32(from), load32(from + 4), load32(from + 8), load32(from + 12) },
		.destination = { load32(from + 16), load32(from + 20), load32(from + 24), load32(from + 28) },
		.ports = load32(at),
		.in_ifindex = ctx->ingress_ifindex,
		.protocol = IPPROTO_TCP,
		.vlan = vlan,
	};

	count_reset(bpf_map_lookup_elem(&weir_tracked6, &key));
}

/* Counts a frame that the kernel gets, if it may be a RST of a flow, in force or not: whatever else is odd about it. */
static __always_inline void left_to_kernel(struct xdp_md *ctx)
{
	struct frame frame;
	__u16 vlan = 0;

	if (!parse_ethernet(ctx, &frame))
		return;
	/* The kernel takes a tag without a VLAN for none. */
	if (frame.tagged)
		vlan = bpf_ntohs(load16(frame.l3 - VLAN_TAG)) & VLAN_ID;
	if (frame.ethertype == bpf_htons(ETH_P_IP)) {
		if (within(&frame, frame.l3, sizeof(struct iphdr)))
			count_reset4(ctx, &frame, vlan);
	} else if (frame.ethertype == bpf_htons(ETH_P_IPV6)) {
		if (within(&frame, frame.l3, sizeof(struct ipv6hdr)))
			count_reset6(ctx, &frame, vlan);
	}
}

/* Whether the frame leaves by a tracked flow, as `action` says; if not, it is the kernel's. */
static __always_inline bool tracked(struct xdp_md *ctx, int *action)
{
	struct frame frame;
	__u16 vlan = 0;

	if (!parse_ethernet(ctx, &frame) || frame.group)
		return false;
	if (frame.tagged) {
		vlan = bpf_ntohs(load16(frame.l3 - VLAN_TAG)) & VLAN_ID;
		/* A priority, and no VLAN. */
		if (!vlan)
			return false;
	}
	if (frame.ethertype == bpf_htons(ETH_P_IP))
		return within(&frame, frame.l3, sizeof(struct iphdr)) && forward_tracked4(ctx, &frame, vlan, action);
	if (frame.ethertype == bpf_htons(ETH_P_IPV6))
		return within(&frame, frame.l3, sizeof(struct ipv6hdr)) && forward_tracked6(ctx, &frame, vlan, action);
	return false;
}

#endif
