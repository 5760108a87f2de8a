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

/* Of a sum below 2^48: three words of 16 bits each, then the carry twice. */
static __always_inline __u16 csum_fold(__u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

#endif
