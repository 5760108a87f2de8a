// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * tally: judges test packets where they arrive, and drops them. A receiver no packet leaves the kernel for.
 *
 *   frame -> mark? of this run? -> flow's next number and last 64 -> delivered, reordered or duplicated
 *         -> latency -> drop
 *
 * Nothing is atomic: one CPU serves the device, or the counts are wrong.
 */
#include "weir/tally.h"
#include "weir/xdp.h"

WEIR_LICENSE;

/*
 * A test packet carries, big-endian and at tally_params.mark_at:
 *
 *   magic u16 | run u8 | flow u24 | sequence u32 | sent u64, CLOCK_MONOTONIC in nanoseconds
 */
/* The run in front of its flow, in one word. */
#define MARK_RUN 2
#define MARK_FLOW_BITS 24
#define MARK_SEQUENCE 6
#define MARK_SENT 10
#define MARK_LEN 18

CONSTANTS struct tally_params tally_params SEC(".rodata.tally") = {};

struct tally_state state SEC(".bss.tally");
struct tally_flow flows[TALLY_FLOWS_MAX] SEC(".bss.tally_flow");
__u64 latency[TALLY_BUCKETS] SEC(".bss.tally_lat");

/* Counts the packet among those of its flow; false for one that was there before. */
static __always_inline bool judge(struct tally_flow *flow, __u32 sequence)
{
	__u32 ahead = sequence - flow->next;

	if ((__s32)ahead >= 0) {
		/* The highest so far. A shift by 64 or more would be undefined: all is forgotten instead. */
		flow->seen = ahead < TALLY_WINDOW - 1 ? flow->seen << (ahead + 1) | 1 : 1;
		flow->next = sequence + 1;
		return true;
	}
	__u32 distance = flow->next - 1 - sequence;
	if (distance >= TALLY_WINDOW) {
		/* Too late to be told from a duplicate. */
		state.beyond_memory++;
	} else {
		__u64 bit = 1ULL << distance;

		if (flow->seen & bit) {
			state.duplicated++;
			return false;
		}
		flow->seen |= bit;
	}
	state.reordered++;
	return true;
}

/* (exponent - 6) * 64 + the leading 7 bits, which are 64 to 127: buckets follow each other without a gap. */
static __always_inline __u32 bucket(__u64 ns)
{
	__u32 exponent = 0;
	__u64 rest = ns;

	if (ns < 1 << TALLY_BUCKET_BITS)
		return ns;
	/* There is no instruction for the leading bit. */
#pragma unroll
	for (int step = 32; step; step >>= 1) {
		__u64 upper = rest >> step;

		if (upper) {
			KEEP_BRANCH;
			rest = upper;
			exponent += step;
		}
	}
	exponent -= TALLY_BUCKET_BITS;
	__u64 index = ((__u64)exponent << TALLY_BUCKET_BITS) + (ns >> exponent);

	return index < TALLY_BUCKETS ? index : TALLY_BUCKETS - 1;
}

SEC("xdp")
int weir_tally(struct xdp_md *ctx)
{
	void *frame = FRAME_START(ctx);
	void *mark = frame + tally_params.mark_at;

	if (mark + MARK_LEN > FRAME_END(ctx))
		goto foreign;
	if (load16(frame + 12) != tally_params.ethertype || *(__u8 *)(frame + tally_params.protocol_at) != tally_params.protocol)
		goto foreign;
	__u32 word = bpf_ntohl(load32(mark + MARK_RUN));

	if (load16(mark) != tally_params.magic || word >> MARK_FLOW_BITS != state.run)
		goto foreign;
	__u32 number = word & ((1 << MARK_FLOW_BITS) - 1);

	/* The second for the verifier, which does not know that the first is the smaller. */
	if (number >= tally_params.flows || number >= TALLY_FLOWS_MAX)
		goto foreign;

	__u64 sent = bpf_be64_to_cpu(load64(mark + MARK_SENT));
	__u32 sequence = bpf_ntohl(load32(mark + MARK_SEQUENCE));
	__u64 now = bpf_ktime_get_ns();

	struct tally_flow *flow = &flows[number];

	barrier_var(flow);
	if (!judge(flow, sequence))
		return XDP_DROP;
	state.delivered++;
	state.last_ns = now;
	/* Clocks of two hosts may disagree: nothing arrives before it was sent. */
	latency[bucket(now > sent ? now - sent : 0)]++;
	return XDP_DROP;

foreign:
	state.foreign++;
	return XDP_DROP;
}
