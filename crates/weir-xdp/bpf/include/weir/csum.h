/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The Internet checksum, RFC 1071: sums of 16-bit words with the carry added back in, whatever the byte order. */
#ifndef WEIR_CSUM_H
#define WEIR_CSUM_H

#include "weir/xdp.h"

/* Words may be added by two or by four at a time: 64 bits hold the carries of 2^32 additions. */
static __always_inline __u64 csum_add32(__u64 sum, __u32 words)
{
	return sum + words;
}

static __always_inline __u64 csum_add64(__u64 sum, __u64 words)
{
	return sum + (words >> 32) + (__u32)words;
}

/* Of up to eight words of 32 bits: what is above 16 bits shrinks to 19, to 1 and to 0. */
static __always_inline __u32 csum_fold(__u64 sum)
{
#pragma unroll
	for (int round = 0; round < 3; round++)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/*
 * Whether a sum over what includes its checksum says that it is right. Of up to eight words of 32 bits two rounds
 * leave less than 0x10008, of which only 0xffff would fold to itself.
 */
static __always_inline bool csum_is_right(__u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

#endif
