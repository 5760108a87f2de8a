// SPDX-License-Identifier: MIT OR Apache-2.0
/* deliver: what a TUN device brings comes in by another device, as if that had received it. */
#include <linux/pkt_cls.h>

#include "weir/xdp.h"

WEIR_LICENSE;

CONSTANTS __u32 deliver_to;

SEC("classifier")
int weir_deliver(struct __sk_buff *skb __attribute__((unused)))
{
	return bpf_redirect(deliver_to, BPF_F_INGRESS);
}
