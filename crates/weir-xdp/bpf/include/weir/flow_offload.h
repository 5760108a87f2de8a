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
 *
 * Each receive queue has flows and numbers of its own: one worker serves it, one CPU at a time runs this for it, and a
 * device brings frames of one connection by one queue.
 */
#ifndef WEIR_FLOW_OFFLOAD_H
#define WEIR_FLOW_OFFLOAD_H

#include "weir/csum.h"
#include "weir/parse.h"
#include "weir/steer.h"

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

/* Of the tables in force; the daemon's to write. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} weir_generation SEC(".maps");

__u64 generation VALUE_OF(weir_generation);

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct flow_count);
	__uint(max_entries, 1); /* both devices of a frame by one look-up */
} weir_flow_count SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_queues);
	__uint(max_entries, 1);
} weir_progress SEC(".maps");

struct flow_queues queues VALUE_OF(weir_progress);

/* Of the frame's queue; none where so many queues have no numbers. */
static __always_inline struct flow_progress *progress_of(struct xdp_md *ctx)
{
	__u32 queue = ctx->rx_queue_index;

	if (queue >= FLOW_QUEUES_MAX)
		return NULL;
	/* Not the address first: before the comparison it has no bounds. */
	barrier_var(queue);
	return &queues.of[queue];
}

/* A packet and what stands behind it in its frame. */
struct extent {
	__s64 packet;
	__s64 padding;
};

static __always_inline bool whole(struct extent *extent, const void *l3, const struct frame *frame, __u32 length)
{
	__s64 room = frame->end - l3;

	/* Not the packet's end first: to Linux 6.12 a length with its bytes turned around has no bounds. */
	barrier_var(room);
	extent->packet = length;
	extent->padding = room - length;
	return extent->padding >= 0;
}

/* RFC 1812 5.2.1: a whole packet without options, with a right header checksum and a hop left. */
static __always_inline bool plain4(const struct iphdr *ip, const struct frame *frame, struct extent *extent)
{
	__u32 length = bpf_ntohs(ip->tot_len);
	__u64 sum = 0;

	if (*(const __u8 *)ip != 0x45 || ip->ttl <= 1)
		return false;
	/* More fragments, or an offset. */
	if (ip->frag_off & bpf_htons(0x3fff))
		return false;
#pragma unroll
	for (int word = 0; word < 5; word++)
		sum = csum_add32(sum, load32((const void *)ip + 4 * word));
	if (!csum_is_right(sum))
		return false;
	return length >= sizeof(*ip) && whole(extent, ip, frame, length);
}

/* One comparison after another, the commonest first. */
static __always_inline bool carried6(__u8 next)
{
	if (next == IPPROTO_TCP)
		return true;
	KEEP_BRANCH;
	if (next == IPPROTO_UDP)
		return true;
	KEEP_BRANCH;
	return next == IPPROTO_ESP;
}

/* RFC 8200 3: TCP, UDP or ESP right behind the header, and a hop left. */
static __always_inline bool plain6(const struct ipv6hdr *ip, const struct frame *frame, struct extent *extent)
{
	__u8 next = ip->nexthdr;

	if ((*(const __u8 *)ip & 0xf0) != 0x60 || ip->hop_limit <= 1)
		return false;
	if (!carried6(next))
		return false;
	return whole(extent, ip, frame, sizeof(*ip) + bpf_ntohs(ip->payload_len));
}

/*
 * What is sent by the router and what is redirected from here end in one queue of a far end with several: the router's socket
 * names its queue, and here the kernel takes the one of the CPU.
 */
static __always_inline bool one_way_out(const struct flow *flow)
{
	return flow->out_queues <= 1 || bpf_get_smp_processor_id() % flow->out_queues == flow->out_queue;
}

/* The flow holds for this frame, and every earlier one of the pair is out. */
static __always_inline bool in_force(struct xdp_md *ctx, const struct flow *flow, const struct flow_progress *progress,
				     const void *l3, const struct extent *extent)
{
	if (flow->generation != generation || flow->in_ifindex != ctx->ingress_ifindex)
		return false;
	if (!same_mac(l3 - ETH_HLEN, flow->in_mac) || extent->packet > flow->mtu)
		return false;
	/* No number is 0: nothing is known of the pair's last frame. */
	return flow->last_slow && flow->last_slow <= progress->done && one_way_out(flow);
}

/* This frame goes to the router, under the number it will get there. */
static __always_inline void hold(struct flow *flow, const struct flow_progress *progress)
{
	flow->last_slow = progress->steered + 1;
}

/* New MAC addresses, counters, redirect; the padding stays behind. */
static __always_inline int forward(struct xdp_md *ctx, const struct flow *flow, const struct frame *frame,
				   __s64 padding)
{
	void *mac = frame->l3 - ETH_HLEN;
	__u64 bytes = frame->end - mac;
	struct flow_count *count;
	__u32 key = 0;

	store64(mac, load64(flow->out_macs));
	store32(mac + 8, load32(flow->out_macs + 8));
	/* Computed here: the two pointers would not both find a register across the look-up. */
	barrier_var(bytes);
	count = bpf_map_lookup_elem(&weir_flow_count, &key);
	if (count) {
		__u32 in = flow->in_device, out = flow->out_device;

		if (in < FLOW_COUNTS_MAX) {
			count->device[in].rx_packets++;
			count->device[in].rx_bytes += bytes;
		}
		if (out < FLOW_COUNTS_MAX) {
			count->device[out].tx_packets++;
			count->device[out].tx_bytes += bytes - padding;
		}
	}
	/* Behind a new tail nothing of the frame may be read again. */
	if (padding)
		bpf_xdp_adjust_tail(ctx, -(int)padding);
	return bpf_redirect(flow->out_ifindex, 0);
}

/* RFC 1624: the checksum rises by as much as the word with the TTL falls. */
static __always_inline void next_hop4(struct iphdr *ip)
{
	/* Read again: clang would cut both out of a word it added up before, and wait for that. Measured. */
	barrier();
	__u32 check = ip->check + bpf_htons(0x0100);

	ip->ttl--;
	ip->check = check + (check >> 16);
}

/* Whether the frame leaves by its flow, as `action` says; if not, it goes the usual way. */
static __always_inline bool offload4(struct xdp_md *ctx, const struct frame *frame, struct iphdr *ip, int *action)
{
	const struct flow_progress *progress = progress_of(ctx);
	struct flow *flow;
	struct extent extent;

	if (frame->tagged || !progress)
		return false;
	struct flow_key4 key = { ip->saddr, ip->daddr, ctx->rx_queue_index };

	flow = bpf_map_lookup_elem(&weir_flows4, &key);
	if (!flow)
		return false;
	if (plain4(ip, frame, &extent) && in_force(ctx, flow, progress, ip, &extent)) {
		next_hop4(ip);
		*action = forward(ctx, flow, frame, extent.padding);
		return true;
	}
	hold(flow, progress);
	return false;
}

static __always_inline bool offload6(struct xdp_md *ctx, const struct frame *frame, struct ipv6hdr *ip, int *action)
{
	const struct flow_progress *progress = progress_of(ctx);
	const void *from = &ip->saddr;
	struct flow *flow;
	struct extent extent;

	if (frame->tagged || !progress)
		return false;
	struct flow_key6 key = {
		{ load64(from), load64(from + 8) },
		{ load64(from + 16), load64(from + 24) },
		ctx->rx_queue_index,
	};

	flow = bpf_map_lookup_elem(&weir_flows6, &key);
	if (!flow)
		return false;
	if (plain6(ip, frame, &extent) && in_force(ctx, flow, progress, ip, &extent)) {
		ip->hop_limit--;
		*action = forward(ctx, flow, frame, extent.padding);
		return true;
	}
	hold(flow, progress);
	return false;
}

/*
 * Numbers a frame on its way to the router's socket: 8 bytes of metadata before it. Drivers that have no room for
 * metadata (vmxnet3, ena, hv_netvsc) have room for a longer frame: there the number is the source address of an
 * Ethernet header before the frame's own, to the address that the daemon made up. Returns the bytes so added.
 * Where neither is to be had nothing is ever learned, so nothing is lost.
 */
static __always_inline __u32 number(struct xdp_md *ctx)
{
	struct flow_progress *progress = progress_of(ctx);

	if (!progress)
		return 0;
	__u64 given = ++progress->steered;

	if (!progress->front_always && !bpf_xdp_adjust_meta(ctx, -(int)sizeof(given))) {
		void *meta = (void *)(long)ctx->data_meta;

		if (meta + sizeof(given) <= FRAME_START(ctx))
			store64(meta, given);
		return 0;
	}
	if (FRAME_END(ctx) - FRAME_START(ctx) > (__s64)progress->front_room || bpf_xdp_adjust_head(ctx, -FRONT_LEN))
		return 0;
	void *front = FRAME_START(ctx);

	if (front + FRONT_LEN <= FRAME_END(ctx)) {
		store64(front, progress->front_mark | given << 48);
		store32(front + 8, given >> 16);
		store16(front + 12, bpf_htons(FRONT_ETHERTYPE));
	}
	return FRONT_LEN;
}

#endif
