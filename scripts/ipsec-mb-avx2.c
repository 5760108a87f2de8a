/* Preloaded into DPDK's ipsec-secgw: Intel's library intel-ipsec-mb chooses its code by the CPU alone, and DPDK's option
 * --force-max-simd-bitwidth does not reach it. With this it takes what it takes on a CPU without AVX-512: AVX2, and AES-NI of
 * 128 bits, for version 1.3 has no AES of 256-bit vectors. `scripts/peers ipsec-mb-avx2` builds it. */
#include <intel-ipsec-mb.h>

void init_mb_mgr_auto(IMB_MGR *manager, IMB_ARCH *chosen)
{
	init_mb_mgr_avx2(manager);
	if (chosen)
		*chosen = IMB_ARCH_AVX2;
}
