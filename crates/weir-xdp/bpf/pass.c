// SPDX-License-Identifier: MIT OR Apache-2.0
/* pass: leaves every frame to the kernel. A veth whose peer has a program receives by NAPI. */
#include "weir/xdp.h"

WEIR_LICENSE;

SEC("xdp")
int weir_pass(struct xdp_md *ctx __attribute__((unused)))
{
	return XDP_PASS;
}
