/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * XDP flow offload: the program itself forwards what the router has decided before.
 *
 *   pair known? -- no ------------------------------------------------> router
 *     `- yes: plain, in force, and no earlier frame on its way? --> rewrite, redirect
 *                `- no: the pair's last slow frame is this one ----> router
 *
 * Only what the router would do with the frame happens to it: a flow says what is the same for every frame of
 * a pair of addresses, and what differs from frame to frame is looked at here.
 */
#ifndef WEIR_FLOW_OFFLOAD_H
#define WEIR_FLOW_OFFLOAD_H

#include "weir/csum.h"
#include "weir/parse.h"
#include "weir/steer.h"

CONSTANTS struct steer_params params SEC(".rodata.steer") = {};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct flow_key4);
	__type(value, struct flow);
	__uint(max_entries, FLOWS_MAX);
} weir_flows4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct flow_key6);
	__type(value, struct flow);
	__uint(max_entries, FLOWS_MAX);
} weir_flows6 SEC(".maps");

/* Of the tables in force. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} weir_generation SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct flow_counters);
	__uint(max_entries, FLOW_DEVICES_MAX);
} weir_flow_count SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_progress);
	__uint(max_entries, 1);
} weir_progress SEC(".maps");

static __always_inline struct flow_progress *progress(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&weir_progress, &only);
}

/* RFC 1812 5.2.1: a whole packet without options, with a right header checksum and a hop left. */
static __always_inline bool plain4(const struct iphdr *ip, const struct frame *frame, __u32 *length)
{
	__u64 sum = 0;

	if (*(const __u8 *)ip != 0x45 || ip->ttl <= 1)
		return false;
	/* More fragments, or an offset. */
	if (ip->frag_off & bpf_htons(0x3fff))
		return false;
#pragma unroll
	for (int word = 0; word < 5; word++)
		sum = csum_add32(sum, load32((const void *)ip + 4 * word));
	if (csum_fold(sum) != 0xffff)
		return false;
	*length = bpf_ntohs(ip->tot_len);
	return *length >= sizeof(*ip) && *length <= frame->end - (void *)ip;
}

/* RFC 8200 3: TCP, UDP or ESP right behind the header, and a hop left. */
static __always_inline bool plain6(const struct ipv6hdr *ip, const struct frame *frame, __u32 *length)
{
	__u8 next = ip->nexthdr;

	if ((*(const __u8 *)ip & 0xf0) != 0x60 || ip->hop_limit <= 1)
		return false;
	if (next != IPPROTO_TCP && next != IPPROTO_UDP && next != IPPROTO_ESP)
		return false;
	*length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	return *length <= frame->end - (void *)ip;
}

/* The flow holds for this frame, and every earlier one of the pair is out. */
static __always_inline bool in_force(struct xdp_md *ctx, const struct flow *flow, const void *l3, __u32 length)
{
	const void *mac = l3 - ETH_HLEN;
	__u32 only = 0;
	__u64 *generation = bpf_map_lookup_elem(&weir_generation, &only);
	struct flow_progress *worker = progress();

	if (!generation || !worker)
		return false;
	if (flow->generation != *generation || flow->in_ifindex != ctx->ingress_ifindex)
		return false;
	if (load32(mac) != load32(flow->in_mac) || load16(mac + 4) != load16(flow->in_mac + 4))
		return false;
	if (length > flow->mtu)
		return false;
	/* No number is 0: nothing is known of the pair's last frame. */
	return flow->last_slow && flow->last_slow <= worker->done;
}

/* This frame goes to the router, under the number it will get there. */
static __always_inline void hold(struct flow *flow)
{
	struct flow_progress *worker = progress();

	if (worker)
		flow->last_slow = worker->steered + 1;
}

/* New MAC addresses, counters, redirect. */
static __always_inline int forward(const struct flow *flow, const struct frame *frame)
{
	void *mac = frame->l3 - ETH_HLEN;
	__u64 bytes = frame->end - mac;
	__u32 in = params.device, out = flow->out_device;
	struct flow_counters *count;

	store64(mac, load64(flow->out_macs));
	store32(mac + 8, load32(flow->out_macs + 8));
	count = bpf_map_lookup_elem(&weir_flow_count, &in);
	if (count) {
		count->rx_packets++;
		count->rx_bytes += bytes;
	}
	count = bpf_map_lookup_elem(&weir_flow_count, &out);
	if (count) {
		count->tx_packets++;
		count->tx_bytes += bytes;
	}
	return bpf_redirect(flow->out_ifindex, 0);
}

/* What became of an IPv4 frame: an XDP action, or XDP_PASS for the router to decide. */
static __always_inline int offload4(struct xdp_md *ctx, const struct frame *frame, struct iphdr *ip)
{
	struct flow_key4 key = { ip->saddr, ip->daddr };
	struct flow *flow;
	__u32 length;

	/* With several queues one could overtake another. */
	if (frame->tagged || ctx->rx_queue_index)
		return XDP_PASS;
	flow = bpf_map_lookup_elem(&weir_flows4, &key);
	if (!flow)
		return XDP_PASS;
	if (!plain4(ip, frame, &length) || !in_force(ctx, flow, ip, length)) {
		hold(flow);
		return XDP_PASS;
	}
	/* RFC 1624: the checksum rises by as much as the word falls. */
	__u32 check = ip->check + bpf_htons(0x0100);

	ip->ttl--;
	ip->check = check + (check >> 16);
	return forward(flow, frame);
}

static __always_inline int offload6(struct xdp_md *ctx, const struct frame *frame, struct ipv6hdr *ip)
{
	const void *from = &ip->saddr;
	struct flow_key6 key = {
		{ load64(from), load64(from + 8) },
		{ load64(from + 16), load64(from + 24) },
	};
	struct flow *flow;
	__u32 length;

	if (frame->tagged || ctx->rx_queue_index)
		return XDP_PASS;
	flow = bpf_map_lookup_elem(&weir_flows6, &key);
	if (!flow)
		return XDP_PASS;
	if (!plain6(ip, frame, &length) || !in_force(ctx, flow, ip, length)) {
		hold(flow);
		return XDP_PASS;
	}
	ip->hop_limit--;
	return forward(flow, frame);
}

/*
 * Numbers a frame on its way to the router's socket: 8 bytes of metadata before it. Where the driver has no
 * room for metadata nothing is ever learned, so nothing is lost.
 */
static __always_inline void number(struct xdp_md *ctx)
{
	struct flow_progress *worker = progress();

	if (!worker || ctx->rx_queue_index)
		return;
	__u64 given = ++worker->steered;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(given)))
		return;
	void *meta = (void *)(long)ctx->data_meta;

	if (meta + sizeof(given) <= FRAME_START(ctx))
		store64(meta, given);
}

#endif
