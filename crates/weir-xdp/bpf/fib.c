// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/*
 * fib: the least a forwarder in XDP can be. The kernel's own tables decide, asked through its helper.
 *
 *   frame -> IP without options, a hop left? -> bpf_fib_lookup -> MAC addresses, hop -> redirect
 *     `- anything else -> the kernel        `- route to nowhere -> counted, dropped
 *
 * What the kernel would look at besides (checksum and whole length of the header, sources that cannot be, its packet
 * filter) nobody looks at: as forwarders by this helper are written.
 */
#include "weir/fib.h"
#include "weir/parse.h"

WEIR_LICENSE_OR_GPL;

/* sys/socket.h is not for BPF. */
#define FAMILY_INET 2
#define FAMILY_INET6 10

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct fib_drops);
	__uint(max_entries, 1);
} weir_fib_drops SEC(".maps");

static __always_inline bool ask4(struct bpf_fib_lookup *fib, const struct iphdr *ip)
{
	if (*(const __u8 *)ip != 0x45 || ip->ttl <= 1)
		return false;
	fib->family = FAMILY_INET;
	fib->tos = ip->tos;
	fib->l4_protocol = ip->protocol;
	fib->tot_len = bpf_ntohs(ip->tot_len);
	fib->ipv4_src = ip->saddr;
	fib->ipv4_dst = ip->daddr;
	return true;
}

static __always_inline bool ask6(struct bpf_fib_lookup *fib, const struct ipv6hdr *ip)
{
	if ((*(const __u8 *)ip & 0xf0) != 0x60 || ip->hop_limit <= 1)
		return false;
	fib->family = FAMILY_INET6;
	fib->flowinfo = load32(ip) & bpf_htonl(0x0fffffff);
	fib->l4_protocol = ip->nexthdr;
	fib->tot_len = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	__builtin_memcpy(fib->ipv6_src, &ip->saddr, sizeof(ip->saddr));
	__builtin_memcpy(fib->ipv6_dst, &ip->daddr, sizeof(ip->daddr));
	return true;
}

/* Of routes that lead nowhere; the kernel would count them and answer. */
static __always_inline int nowhere(long found)
{
	__u32 key = 0;
	struct fib_drops *drops = bpf_map_lookup_elem(&weir_fib_drops, &key);

	if (drops && found == BPF_FIB_LKUP_RET_BLACKHOLE)
		drops->blackhole++;
	if (drops && found == BPF_FIB_LKUP_RET_UNREACHABLE)
		drops->unreachable++;
	if (drops && found == BPF_FIB_LKUP_RET_PROHIBIT)
		drops->prohibit++;
	return XDP_DROP;
}

SEC("xdp")
int weir_fib(struct xdp_md *ctx)
{
	struct bpf_fib_lookup fib = {};
	struct frame frame;

	if (!parse_ethernet(ctx, &frame) || frame.tagged || frame.group)
		return XDP_PASS;
	struct iphdr *ip4 = frame.l3;
	struct ipv6hdr *ip6 = frame.l3;
	bool inet = frame.ethertype == bpf_htons(ETH_P_IP);

	if (inet) {
		if (!within(&frame, ip4, sizeof(*ip4)) || !ask4(&fib, ip4))
			return XDP_PASS;
	} else {
		if (frame.ethertype != bpf_htons(ETH_P_IPV6) || !within(&frame, ip6, sizeof(*ip6)) || !ask6(&fib, ip6))
			return XDP_PASS;
	}
	fib.ifindex = ctx->ingress_ifindex;
	long found = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);

	switch (found) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		break;
	case BPF_FIB_LKUP_RET_BLACKHOLE:
	case BPF_FIB_LKUP_RET_UNREACHABLE:
	case BPF_FIB_LKUP_RET_PROHIBIT:
		return nowhere(found);
	default:
		/* For this host, no route, no neighbour, too big: the kernel's to answer. */
		return XDP_PASS;
	}
	if (inet) {
		/* RFC 1624: the checksum rises by as much as the word with the TTL falls. */
		__u32 check = ip4->check + bpf_htons(0x0100);

		ip4->ttl--;
		ip4->check = check + (check >> 16);
	} else {
		ip6->hop_limit--;
	}
	void *mac = frame.l3 - ETH_HLEN;

	__builtin_memcpy(mac, fib.dmac, ETH_ALEN);
	__builtin_memcpy(mac + ETH_ALEN, fib.smac, ETH_ALEN);
	return bpf_redirect(fib.ifindex, 0);
}
