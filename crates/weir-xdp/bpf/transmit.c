// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * transmit: sends a worker's batch without a socket buffer. The kernel runs it once for each live frame of a call
 * (BPF_PROG_TEST_RUN).
 *
 *   next slot -> length -> copy -> redirect ... bulk of 16 -> device -> weir_taken: taken, refused
 *
 * One thread at a time drives it, so nothing is atomic. The call runs with softirqs off: between its first frame and
 * its last bulk nothing else is redirected on this CPU.
 */
#include "weir/transmit.h"
#include "weir/xdp.h"

WEIR_LICENSE;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct transmit_state);
	__uint(max_entries, 1);
} weir_tx_state SEC(".maps");

struct transmit_state state VALUE_OF(weir_tx_state);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct transmit_slot);
	__uint(max_entries, TRANSMIT_SLOTS);
} weir_tx_slots SEC(".maps");

SEC("xdp")
int weir_transmit(struct xdp_md *ctx)
{
	__u32 at = state.next;

	if (at >= state.count)
		return XDP_DROP;
	state.next = at + 1;
	state.cpu = bpf_get_smp_processor_id() + 1;

	struct transmit_slot *slot = bpf_map_lookup_elem(&weir_tx_slots, &at);

	if (!slot)
		return XDP_DROP;
	__u32 len = slot->len;
	__u32 longest = state.longest;

	if (len < 14 || len > TRANSMIT_FRAME_MAX)
		return XDP_DROP;
	if (len != longest && bpf_xdp_adjust_tail(ctx, (int)(len - longest)))
		return XDP_DROP;
	if (bpf_xdp_store_bytes(ctx, 0, slot->frame, len))
		return XDP_DROP;
	return bpf_redirect(state.ifindex, 0);
}

/* xdp_devmap_xmit: from, to, sent, drops, error. */
SEC("raw_tp/xdp_devmap_xmit")
int weir_taken(struct bpf_raw_tracepoint_args *ctx)
{
	if (state.cpu != bpf_get_smp_processor_id() + 1)
		return 0;
	state.taken += (__u32)ctx->args[2];
	state.refused += (__u32)ctx->args[3];
	if ((int)ctx->args[4])
		state.error = (int)ctx->args[4];
	return 0;
}
