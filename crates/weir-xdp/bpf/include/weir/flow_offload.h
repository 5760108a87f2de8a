/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * XDP flow offload: the program itself forwards what the router has decided before.
 *
 *   pair known? -- no ------------------------------------------------> router
 *     `- yes: plain, in force, and no earlier frame on its way? --> rewrite, redirect
 *                `- no: the pair's last slow frame is this one ----> router
 *
 * Only what the router would do with the frame happens to it: a flow says what is the same for every frame of
 * a pair of addresses, and what differs from frame to frame is looked at here. Where several next hops lead to a
 * destination, or policies tell flows of a pair apart, the pair's entry says so, and each flow of it has one of its own.
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

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct tables);
	__uint(max_entries, 1);
} weir_tables SEC(".maps");

struct tables tables VALUE_OF(weir_tables);

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

/* How a frame's link header has to be and becomes, and the devices it is counted on. */
struct link {
	const __u8 *in_mac;
	const __u8 *tag; /* it leaves with; zeros: none */
	__u32 in_device;
	__u32 out_device;
};

/* A number of a counter, for the verifier of Linux 6.1: it forgets the bound of one that was put on the stack. */
static __always_inline __u32 bounded(__u32 number)
{
	asm volatile("" : "+r"(number));
	return number & (FLOW_COUNTS_MAX - 1);
}

/* What tags add to the frames that counters of devices have. */
static __always_inline void count_tags(const struct link *link, bool came, bool leaves)
{
	struct flow_count *count;
	__u32 key = 0, in = link->in_device, out = link->out_device;

	count = bpf_map_lookup_elem(&weir_flow_count, &key);
	if (!count)
		return;
	if (came && in < FLOW_COUNTS_MAX)
		count->device[bounded(in)].rx_bytes += VLAN_TAG;
	if (leaves && out < FLOW_COUNTS_MAX)
		count->device[bounded(out)].tx_bytes += VLAN_TAG;
}

/*
 * Gives a frame the tag that it leaves with, or none, and so other bounds: the packet stays where it is, and its first `headers` bytes
 * may be read again. Where the frame starts; NULL: it is as it came, for want of room.
 */
static __always_inline void *retag(struct xdp_md *ctx, const struct link *link, struct frame *frame, __u64 headers)
{
	bool leaves = load16(link->tag);
	int shorter = (frame->tagged ? VLAN_TAG : 0) - (leaves ? VLAN_TAG : 0);
	void *mac;

	if (shorter && bpf_xdp_adjust_head(ctx, shorter))
		return NULL;
	mac = FRAME_START(ctx);
	frame->end = FRAME_END(ctx);
	frame->l3 = mac + ETH_HLEN;
	if (leaves)
		frame->l3 += VLAN_TAG;
	/* It is, as before; the verifier wants to see it. */
	if (!within(frame, frame->l3, headers))
		return NULL;
	if (leaves) {
		store16(mac + 12, bpf_htons(ETH_P_8021Q));
		store16(mac + 14, load16(link->tag));
	}
	count_tags(link, frame->tagged, leaves);
	return mac;
}

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

/* What policies let pass holds as long as somebody would hear of another. */
static __always_inline bool is_followed(const struct flow *flow)
{
	return !(flow->flags & FLOW_ENFORCED) || bpf_ktime_get_coarse_ns() < tables.policies_until;
}

/* A frame of the flow's VLAN. A tag without a VLAN is a priority, which the router looks at. */
static __always_inline bool is_of_vlan(const struct flow *flow, const struct frame *frame)
{
	__u16 vlan = 0;

	if (frame->tagged) {
		vlan = bpf_ntohs(load16(frame->l3 - VLAN_TAG)) & VLAN_ID;
		if (!vlan)
			return false;
	}
	return vlan == flow->in_vlan;
}

/* The flow holds for a frame that begins there, and every earlier one of the pair is out. */
static __always_inline bool in_force(struct xdp_md *ctx, const struct flow *flow, const struct flow_progress *progress,
				     const void *mac, const struct extent *extent)
{
	if (flow->generation != tables.generation || flow->in_ifindex != ctx->ingress_ifindex)
		return false;
	if (!same_mac(mac, flow->in_mac) || extent->packet > flow->mtu)
		return false;
	/* No number is 0: nothing is known of the pair's last frame. */
	return flow->last_slow && flow->last_slow <= progress->done;
}

/* A frame with a tag, or a flow that has anything of VLANs, several queues, several next hops or policies. */
static __always_inline bool is_rare(const struct flow *flow, const struct frame *frame)
{
	/* out_queue, out_queues, in_vlan and flags are one word, and the tag is the end of another. */
	return frame->tagged | load64(&flow->out_queue) | load64(flow->in_mac) >> 48;
}

/* This frame goes to the router, under the number it will get there. */
static __always_inline void hold(struct flow *flow, const struct flow_progress *progress)
{
	flow->last_slow = progress->steered + 1;
}

/* New MAC addresses, counters, redirect; the padding stays behind. */
static __always_inline int forward(struct xdp_md *ctx, const struct flow *flow, const struct frame *frame, void *mac,
				   __s64 padding)
{
	__u64 bytes = frame->end - frame->l3 + ETH_HLEN;
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

/* Policies that let a packet pass have it among theirs: what comes in as received, what leaves as sent. One for both families. */
static __noinline void count_policies(__u32 in, __u32 out, __u64 bytes)
{
	struct flow_count *count;
	__u32 key = 0;

	count = bpf_map_lookup_elem(&weir_flow_count, &key);
	if (!count)
		return;
	if (in && in < FLOW_COUNTS_MAX) {
		count->device[bounded(in)].rx_packets++;
		count->device[bounded(in)].rx_bytes += bytes;
	}
	if (out && out < FLOW_COUNTS_MAX) {
		count->device[bounded(out)].tx_packets++;
		count->device[bounded(out)].tx_bytes += bytes;
	}
}

/* The frame as it leaves this way, its first `headers` bytes behind tags to be read again; NULL: there is no room for a tag. */
static __always_inline void *as_it_leaves(struct xdp_md *ctx, const struct flow *flow, struct frame *frame, __u64 headers)
{
	struct link link = { flow->in_mac, flow->tag, flow->in_device, flow->out_device };

	if (!(load16(flow->tag) | frame->tagged))
		return frame->l3 - ETH_HLEN;
	return retag(ctx, &link, frame, headers);
}

/* What tells flows of a pair apart, beside the protocol, as the router's flow hash does: ports, where there are some. */
static __always_inline __u32 ports_of(const struct frame *frame, const void *l4, __u8 protocol, __s64 length)
{
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP && protocol != IPPROTO_SCTP)
		return 0;
	return length >= 4 && within(frame, l4, 4) ? load32(l4) : 0;
}

static __always_inline void set_pair6(struct flow_key6 *key, const struct ipv6hdr *ip)
{
	const void *from = &ip->saddr;

	store64(key->source, load64(from));
	store64(key->source + 2, load64(from + 8));
	store64(key->destination, load64(from + 16));
	store64(key->destination + 2, load64(from + 24));
}

/* The third word of a flow's key. */
static __always_inline __u32 which_flow(__u32 ports, __u32 protocol, __u32 queue)
{
	return ((ports ^ protocol << 8 ^ queue) * FLOW_WHICH_FACTOR) | FLOW_WHICH;
}

static __always_inline bool is_of(const struct flow *flow, __u32 ports, __u32 protocol, __u32 queue)
{
	return flow->ports == ports && flow->protocol == protocol && flow->queue == queue;
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

/* What became of a frame. */
enum offloaded {
	OFFLOAD_NONE, /* it goes the usual way */
	OFFLOAD_OUT,  /* it leaves, as `action` says */
	OFFLOAD_RARE, /* by a flow that has a function of its own */
	OFFLOAD_WORKER, /* it goes to the router, and may not be read again */
};

/* These two read the frame anew: they stand in functions of their own, whose registers would cost other frames some 5 ns. */
static __always_inline enum offloaded offload_rare4(struct xdp_md *ctx, struct flow *flow, int *action)
{
	const struct flow_progress *progress = progress_of(ctx);
	struct extent extent;
	struct frame frame;
	void *mac;

	if (!progress || !flow || !parse_ethernet(ctx, &frame) || !within(&frame, frame.l3, sizeof(struct iphdr)))
		return OFFLOAD_NONE;
	struct iphdr *ip = frame.l3;

	if (!plain4(ip, &frame, &extent))
		goto held;
	if (flow->flags & FLOW_SPREAD) {
		__u32 ports = ports_of(&frame, ip + 1, ip->protocol, extent.packet - (__s64)sizeof(*ip));
		__u32 protocol = ip->protocol, queue = ctx->rx_queue_index;
		struct flow_key4 key = { ip->saddr, ip->daddr, which_flow(ports, protocol, queue) };
		/* The pair's last frame of unknown flow. */
		__u64 last_slow = flow->last_slow;

		flow = bpf_map_lookup_elem(&weir_flows4, &key);
		if (!flow || !is_of(flow, ports, protocol, queue))
			return OFFLOAD_NONE;
		if (last_slow > progress->done)
			goto held;
	}
	/* It is there; the verifier wants to see it. */
	mac = FRAME_START(ctx);
	if (!within(&frame, mac, ETH_HLEN) || !in_force(ctx, flow, progress, mac, &extent))
		goto held;
	if (!one_way_out(flow) || !is_of_vlan(flow, &frame) || !is_followed(flow))
		goto held;
	mac = as_it_leaves(ctx, flow, &frame, sizeof(*ip));
	if (!mac) {
		hold(flow, progress);
		return OFFLOAD_WORKER;
	}
	next_hop4(frame.l3);
	if (flow->in_policy | flow->out_policy)
		count_policies(flow->in_policy, flow->out_policy, extent.packet);
	*action = forward(ctx, flow, &frame, mac, extent.padding);
	return OFFLOAD_OUT;
held:
	hold(flow, progress);
	return OFFLOAD_NONE;
}

static __always_inline enum offloaded offload_rare6(struct xdp_md *ctx, struct flow *flow, int *action)
{
	const struct flow_progress *progress = progress_of(ctx);
	struct extent extent;
	struct frame frame;
	void *mac;

	if (!progress || !flow || !parse_ethernet(ctx, &frame) || !within(&frame, frame.l3, sizeof(struct ipv6hdr)))
		return OFFLOAD_NONE;
	struct ipv6hdr *ip = frame.l3;

	if (!plain6(ip, &frame, &extent))
		goto held;
	if (flow->flags & FLOW_SPREAD) {
		__u32 ports = ports_of(&frame, ip + 1, ip->nexthdr, extent.packet - (__s64)sizeof(*ip));
		__u32 protocol = ip->nexthdr, queue = ctx->rx_queue_index;
		struct flow_key6 key __attribute__((aligned(8)));
		__u64 last_slow = flow->last_slow;

		set_pair6(&key, ip);
		key.which = which_flow(ports, protocol, queue);
		flow = bpf_map_lookup_elem(&weir_flows6, &key);
		if (!flow || !is_of(flow, ports, protocol, queue))
			return OFFLOAD_NONE;
		if (last_slow > progress->done)
			goto held;
	}
	mac = FRAME_START(ctx);
	if (!within(&frame, mac, ETH_HLEN) || !in_force(ctx, flow, progress, mac, &extent))
		goto held;
	if (!one_way_out(flow) || !is_of_vlan(flow, &frame) || !is_followed(flow))
		goto held;
	mac = as_it_leaves(ctx, flow, &frame, sizeof(*ip));
	if (!mac) {
		hold(flow, progress);
		return OFFLOAD_WORKER;
	}
	((struct ipv6hdr *)frame.l3)->hop_limit--;
	if (flow->in_policy | flow->out_policy)
		count_policies(flow->in_policy, flow->out_policy, extent.packet);
	*action = forward(ctx, flow, &frame, mac, extent.padding);
	return OFFLOAD_OUT;
held:
	hold(flow, progress);
	return OFFLOAD_NONE;
}

static __always_inline enum offloaded offload4(struct xdp_md *ctx, const struct frame *frame, struct iphdr *ip,
					      struct flow **rare, int *action)
{
	const struct flow_progress *progress = progress_of(ctx);
	void *mac = frame->l3 - ETH_HLEN;
	struct flow *flow;
	struct extent extent;

	if (!progress)
		return OFFLOAD_NONE;
	struct flow_key4 key = { ip->saddr, ip->daddr, ctx->rx_queue_index };

	flow = bpf_map_lookup_elem(&weir_flows4, &key);
	if (!flow)
		return OFFLOAD_NONE;
	if (is_rare(flow, frame)) {
		*rare = flow;
		return OFFLOAD_RARE;
	}
	if (plain4(ip, frame, &extent) && in_force(ctx, flow, progress, mac, &extent)) {
		next_hop4(ip);
		*action = forward(ctx, flow, frame, mac, extent.padding);
		return OFFLOAD_OUT;
	}
	hold(flow, progress);
	return OFFLOAD_NONE;
}

static __always_inline enum offloaded offload6(struct xdp_md *ctx, const struct frame *frame, struct ipv6hdr *ip,
					      struct flow **rare, int *action)
{
	const struct flow_progress *progress = progress_of(ctx);
	struct flow_key6 key __attribute__((aligned(8)));
	void *mac = frame->l3 - ETH_HLEN;
	struct flow *flow;
	struct extent extent;

	if (!progress)
		return OFFLOAD_NONE;
	set_pair6(&key, ip);
	key.which = ctx->rx_queue_index;
	flow = bpf_map_lookup_elem(&weir_flows6, &key);
	if (!flow)
		return OFFLOAD_NONE;
	if (is_rare(flow, frame)) {
		*rare = flow;
		return OFFLOAD_RARE;
	}
	if (plain6(ip, frame, &extent) && in_force(ctx, flow, progress, mac, &extent)) {
		ip->hop_limit--;
		*action = forward(ctx, flow, frame, mac, extent.padding);
		return OFFLOAD_OUT;
	}
	hold(flow, progress);
	return OFFLOAD_NONE;
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

	progress->cpu = bpf_get_smp_processor_id();

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
