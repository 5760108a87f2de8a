//! Whether this CPU has the instructions that the build uses (x86-64-v3 by default).
//!
//! Promises: asked first in `main`, an old CPU gets a sentence instead of an illegal instruction. So nothing here
//! allocates or formats before the answer is known, and the answer is made of what the compiler does not know: asking
//! `is_x86_feature_detected!` would be answered at build time by the very assumption that is to be checked.

/// What a build for x86-64-v3 needs and this CPU lacks, by the names `/proc/cpuinfo` has; nothing where it has all, and
/// where the build needs none of them.
pub fn lacking() -> Option<&'static str> {
    #[cfg(all(target_arch = "x86_64", target_feature = "avx2"))]
    return x86::lacking();
    #[cfg(not(all(target_arch = "x86_64", target_feature = "avx2")))]
    None
}

/// Whether `program` can run here; says on standard error what this CPU lacks.
pub fn suffices(program: &str) -> bool {
    let lacking = lacking();
    if let Some(lacking) = lacking {
        eprintln!(
            "{program}: this CPU lacks `{lacking}`, and this build is for x86-64-v3 (2013 and later); build it for this machine with \
             RUSTFLAGS=-Ctarget-cpu=native"
        );
    }
    lacking.is_none()
}

#[cfg(all(target_arch = "x86_64", target_feature = "avx2"))]
mod x86 {
    use std::arch::x86_64::__cpuid_count;

    /// Leaf, whether the bit is in EBX instead of ECX, bit, name. Intel SDM, CPUID; x86-64 psABI, microarchitecture levels.
    const NEEDED: [(u32, bool, u32, &str); 15] = [
        (1, false, 0, "sse3"),
        (1, false, 9, "ssse3"),
        (1, false, 19, "sse4_1"),
        (1, false, 20, "sse4_2"),
        (1, false, 23, "popcnt"),
        (1, false, 13, "cx16"),
        (0x8000_0001, false, 0, "lahf_lm"),
        (1, false, 27, "osxsave"),
        (1, false, 28, "avx"),
        (1, false, 29, "f16c"),
        (1, false, 12, "fma"),
        (1, false, 22, "movbe"),
        (0x8000_0001, false, 5, "abm"),
        (7, true, 3, "bmi1"),
        (7, true, 5, "avx2"),
    ];

    pub fn lacking() -> Option<&'static str> {
        let most = |leaf: u32| __cpuid_count(leaf & 0x8000_0000, 0).eax >= leaf;
        let mut at = 0;
        while at < NEEDED.len() {
            let (leaf, ebx, bit, name) = NEEDED[at];
            let found = __cpuid_count(leaf, 0);
            let word = if ebx { found.ebx } else { found.ecx };
            if !most(leaf) || word >> bit & 1 == 0 {
                return Some(name);
            }
            at += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_machine_that_runs_this_test_lacks_nothing() {
        assert_eq!(super::lacking(), None);
    }
}
