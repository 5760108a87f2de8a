// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * generate: writes a test packet over each live frame the kernel hands it (BPF_PROG_TEST_RUN), and sends it.
 *
 *   due? -> this packet's slot -> length -> head -> sequence, time, checksum -> redirect
 *     `- no: drop the frame, look at the clock again with the next one
 *
 * One thread runs it, so nothing is atomic. Frames come from a page pool and keep what the last run wrote
 * behind the head: zeros.
 */
#include "weir/csum.h"
#include "weir/generate.h"
#include "weir/xdp.h"

WEIR_LICENSE;

CONSTANTS struct generate_params generate_params SEC(".rodata.gen") = {};

struct generate_state state SEC(".bss.weir_gen");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct generate_slot);
	__uint(max_entries, 1); /* as many as packets of a round, when it is loaded */
} weir_gen_slots SEC(".maps");

/* Whether a frame is due, and when the one after it is. */
static __always_inline bool due(__u64 now)
{
	__u64 interval = state.interval;

	if (now >= state.until_ns)
		return false;
	if (!interval)
		return true;
	__u64 next = state.next;

	now <<= GENERATE_TIME_SHIFT;
	if (now < next)
		return false;
	/* Too far behind: no more than the lag is caught up. */
	if (now - next > state.lag)
		next = now - state.lag;
	state.next = next + interval;
	return true;
}

/* Moves of 8 bytes, and one more that ends with the head and overlaps the last of them. */
static __always_inline void copy_head(void *frame, const void *from, __u32 head)
{
	if (head >= 8) {
#pragma unroll
		for (__u32 at = 0; at < GENERATE_HEAD_MAX; at += 8)
			if (at + 8 <= head)
				store64(frame + at, load64(from + at));
		if (head % 8)
			store64(frame + head - 8, load64(from + head - 8));
		return;
	}
	if (head & 4)
		store32(frame, load32(from));
	if (head & 2)
		store16(frame + (head & 4), load16(from + (head & 4)));
}

SEC("xdp")
int weir_generate(struct xdp_md *ctx)
{
	const volatile struct generate_params *p = &generate_params;
	__u64 now = bpf_ktime_get_ns();

	/* One register for all of them, instead of an address each. */
	barrier_var(p);

	if (!due(now))
		return XDP_DROP;

	struct generate_slot *slot = bpf_map_lookup_elem(&weir_gen_slots, &state.cursor);

	if (!slot)
		return XDP_DROP;
	if (p->adjust && bpf_xdp_adjust_tail(ctx, slot->shorter))
		return XDP_DROP;
	void *frame = FRAME_START(ctx);
	__u32 head = p->head;

	if (frame + head > FRAME_END(ctx))
		return XDP_DROP;
	copy_head(frame, slot->head, head);

	__u32 round = state.round;
	__u32 next = state.cursor + 1;

	if (next == p->slots) {
		next = 0;
		state.round = round + p->stride;
	}
	state.cursor = next;

	__u64 sum = slot->sum;

	__u32 sequence_at = p->sequence_at;
	__u32 time_at = p->time_at;
	__u32 checksum_at = p->checksum_at;

	if (sequence_at != GENERATE_NONE) {
		__be32 sequence = bpf_htonl(slot->sequence + round);

		store32(frame + sequence_at, sequence);
		sum = csum_add32(sum, sequence);
	}
	if (time_at != GENERATE_NONE) {
		__be64 time = bpf_cpu_to_be64(now);

		store64(frame + time_at, time);
		sum = csum_add64(sum, time);
	}
	if (checksum_at != GENERATE_NONE) {
		__u16 check = ~csum_fold(sum);

		/* RFC 768: zero would say that there is none. */
		store16(frame + checksum_at, check ? check : 0xffff);
	}
	state.sent++;
	return bpf_redirect(p->ifindex, 0);
}
