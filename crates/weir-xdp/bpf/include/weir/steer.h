/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What `steer` shares with the daemon; src/layout.rs has the same in Rust. */
#ifndef WEIR_STEER_H
#define WEIR_STEER_H

#include <linux/types.h>

/* Why a frame went where it went. What goes to weir comes first. */
enum steer_cause {
	STEER_TRANSIT,
	STEER_ESP,
	STEER_RESOLVE,
	STEER_LOCAL,
	STEER_KEPT,
	STEER_ARP,
	STEER_GROUP,
	STEER_NOT_IP,
	STEER_SHORT,
	STEER_NO_SOCKET,
	STEER_CONNTRACK,
	STEER_CAUSES,
};

/* Whose an address is; one that is in no map is nobody's here. */
enum steer_owner {
	STEER_NOBODY,
	STEER_KERNEL,
	STEER_WEIR,
	STEER_KERNEL_BUT_ESP, /* where an SA of weir ends */
};

/* What an enforcement point drops. */
enum enforce_drop {
	ENFORCE_TRANSIT, /* IP packets that are not for this host */
	ENFORCE_OPAQUE,  /* more than one VLAN tag, or MPLS */
	ENFORCE_DROPS,
};

/* Local addresses of one family; prefixes whose routes only the kernel can follow; UDP ports ESP comes in on; SPIs only the kernel opens; queues with a socket; pairs of addresses; devices. */
#define STEER_LOCAL_MAX 4096
#define STEER_KEPT_MAX 65536
#define STEER_ESP_PORTS_MAX 1024
#define STEER_SPIS_MAX 65536
#define STEER_QUEUES_MAX 256
#define FLOWS_MAX 65536
#define FLOW_DEVICES_MAX 256
/* Receive queues of a device whose frames may take the flow offload; those beyond go to the router. */
#define FLOW_QUEUES_MAX 64
/* Counters of what is offloaded: of each device, and behind them of VLANs that have their own and of policies. */
#define FLOW_COUNTS_MAX 512

/* What only the kernel can do: follow routes of so many prefixes of either family, open ESP of so many SPIs. */
struct kept {
	__u64 v4;
	__u64 v6;
	__u64 spis;
};

/* What the router decided about a pair of addresses, or about one flow of them, as they come in by one queue. */
struct flow {
	__u64 generation; /* of the tables it was decided by; of FLOW_SPREAD nothing else counts */
	__u32 in_ifindex;
	__u32 out_ifindex;
	__u32 mtu; /* of the outgoing port, bytes of IP */
	__u32 out_device;
	__u8 in_mac[6];
	__u8 tag[2]; /* of the VLAN they leave by, as it stands in a frame; 0: without one */
	__u8 out_macs[12]; /* destination and source, as they leave */
	__u32 in_device;
	__u64 last_slow; /* number of its last frame that went to the router; 0: none is known */
	__u16 out_queue; /* where the router's socket sends */
	__u16 out_queues; /* of the far end, where its choice of one follows the CPU; 0: it does not */
	__u16 in_vlan; /* 0: without a tag */
	__u16 flags;
	__u32 ports; /* of a flow, as they stand in a packet, 0 without */
	__u16 protocol; /* of a flow */
	__u16 queue; /* it comes in by */
	__u16 in_policy; /* numbers that policies count it under; 0: none does */
	__u16 out_policy;
	__u32 pad;
};

/* Of a pair of addresses: its flows have entries of their own, because several next hops lead there or policies tell them apart. */
#define FLOW_SPREAD 1
/* Policies let it pass. */
#define FLOW_ENFORCED 2

/* What decisions hold under; the daemon's to write. One that hangs writes nothing. */
struct tables {
	__u64 generation; /* of the tables in force */
	__u64 policies_until; /* when nobody follows policies any more, in nanoseconds of CLOCK_MONOTONIC */
};

struct flow_key4 {
	__be32 source;
	__be32 destination;
	__u32 which;
};

struct flow_key6 {
	__u32 source[4];
	__u32 destination[4];
	__u32 which;
};

/*
 * The word that tells entries of one pair of addresses apart: of the pair itself, its queue; of a flow of it, this, a number that few
 * flows share. The key is one word longer than two addresses so, which costs nothing; the flow's entry says whose it is.
 */
#define FLOW_WHICH 0x80000000
#define FLOW_WHICH_FACTOR 0x9e3779b1

/* What one device received and sent without the router, on one CPU. */
struct flow_counters {
	__u64 rx_packets;
	__u64 rx_bytes;
	__u64 tx_packets;
	__u64 tx_bytes;
};

struct flow_count {
	struct flow_counters device[FLOW_COUNTS_MAX];
};

/* What the program and the worker of one queue tell each other, a cache line each. */
struct flow_progress {
	__u64 steered; /* the number given last */
	__u64 cpu; /* where that was */
	__u64 pad[6];
	__u64 done; /* every frame up to this number has left the router, or is lost */
	__u64 pad2[7];
	/* Where metadata is not to be had: the daemon's to write, before the program is on a device. */
	__u64 front_room; /* longest frame that a front still fits before, in its buffer */
	__u64 front_mark; /* 48 bits nobody outside knows */
	__u64 front_always; /* for tests: also where there is metadata */
	__u64 pad3[5];
};

struct flow_queues {
	struct flow_progress of[FLOW_QUEUES_MAX];
};

/* Flows of the kernel's conntrack that are forwarded here. */
#define TRACKED_MAX (1 << 17)
/* Places of one family where their packets come in: two of each flow, more where answers come in by several next hops. */
#define TRACKED_WAYS_MAX (1 << 19)

/* How packets of one direction arrive; addresses and ports in network order. */
struct tracked_key4 {
	__u32 source;
	__u32 destination;
	__u32 ports; /* source and destination */
	__u32 in_ifindex;
	__u16 protocol;
	__u16 vlan; /* 0: without a tag */
};

struct tracked_key6 {
	__u32 source[4];
	__u32 destination[4];
	__u32 ports;
	__u32 in_ifindex;
	__u16 protocol;
	__u16 vlan;
};

/* How they leave. */
struct tracked {
	__u32 flow; /* its number in weir_tracked */
	__u32 reply; /* whether this is the direction of answers */
	__u32 out_ifindex;
	__u32 mtu; /* of the outgoing port, bytes of IP */
	__u32 in_device;
	__u32 out_device;
	__u32 ip_delta; /* what the header's checksum changes by, TTL included, as words lie in a packet */
	__u32 transport_delta;
	__u8 in_mac[6];
	__u8 tag[2]; /* of the VLAN they leave by, as it stands in a frame; 0: without one */
	__u8 out_macs[12];
	__u32 ports;
	__u8 source[16];
	__u8 destination[16];
};

/* Both directions of a flow: in force, and what passed. */
struct tracked_flow {
	__u64 generation; /* of the tables its ways were found by; the daemon's to write, when both directions are there */
	__u64 original_packets;
	__u64 original_bytes;
	__u64 reply_packets;
	__u64 reply_bytes;
	__u64 resets; /* segments that were left to the kernel and that it may take for a RST of the flow */
	__u64 pad[2];
};

/* What stands before a frame in place of metadata: as long as an Ethernet header, and read as one a frame of nobody. */
#define FRONT_ETHERTYPE 0x88b5 /* IEEE 802, for local experiments */
#define FRONT_LEN 14

#endif
