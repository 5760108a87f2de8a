//! Where a relay's time goes by the way a packet takes: what stands on the stack, whatever its leaf is called.
//!
//! ```text
//! thread ─► worker ─► send ─► tcp_sendmsg ─► … ─► net_rx_action ─► tcp_v4_rcv ─► leaf
//!                             kernel: send        kernel: softirq, the nearest to the leaf, decides
//! ```
//!
//! Promises: every sample at work is in exactly one part. Refuses: nothing; what no name decides is user code, or
//! the rest of the kernel.

use super::rules::Rules;
use super::{Profile, function};
use crate::experiment::text::matches;

pub const PARTS: [&str; 7] = [
    "user code",
    "crypto",
    "kernel: send",
    "kernel: receive",
    "kernel: softirq",
    "waits and wake-ups",
    "kernel: rest",
];

const USER: usize = 0;
const CRYPTO: usize = 1;
const REST: usize = 6;

/// What a kernel's frame decides.
const FRAMES: [(usize, &[&str]); 4] = [
    (
        2,
        &[
            "tcp_sendmsg*",
            "inet_sendmsg",
            "sock_sendmsg*",
            "__sock_sendmsg*",
            "__sys_send*",
            "io_send*",
            "tls_sw_sendmsg*",
        ],
    ),
    (3, &["tcp_recvmsg*", "inet_recvmsg", "sock_recvmsg*", "__sys_recv*", "io_recv*", "tls_sw_recvmsg*"]),
    (
        4,
        &[
            "net_rx_action",
            "process_backlog*",
            "handle_softirqs*",
            "__do_softirq",
            "do_softirq*",
            "tcp_v4_rcv",
            "tcp_v4_do_rcv",
        ],
    ),
    (
        5,
        &[
            "schedule*",
            "__schedule",
            "ep_poll*",
            "do_epoll_*",
            "io_cqring_wait*",
            "try_to_wake_up*",
            "__wake_up*",
            "sock_def_readable",
            "futex_*",
            "do_futex",
            "eventfd_*",
            "ksys_read",
            "hrtimer_*",
            "exit_to_user_mode_loop",
        ],
    ),
];

/// Samples at work by part.
pub fn parts(profile: &Profile, rules: &Rules) -> [u64; PARTS.len()] {
    let mut counts = [0; PARTS.len()];
    for (stack, n) in profile.stacks.iter().filter(|(stack, _)| rules.is_work(stack)) {
        counts[part(stack, profile, rules)] += n;
    }
    counts
}

fn part(stack: &[String], profile: &Profile, rules: &Rules) -> usize {
    let leaf = stack.last().map_or("", |frame| function(frame));
    if rules.category(leaf, profile) == "crypto" {
        return CRYPTO;
    }
    let is_kernels = |frame: &&String| frame.ends_with("_[k]");
    let decided = stack.iter().rev().filter(is_kernels).find_map(|frame| {
        let name = function(frame);
        FRAMES.iter().find(|(_, patterns)| patterns.iter().any(|p| matches(p, name))).map(|(part, _)| *part)
    });
    match decided {
        Some(part) => part,
        None if stack.iter().any(|frame| is_kernels(&frame)) => REST,
        None => USER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_to_the_leaf_decides_and_nothing_counts_twice() {
        let rules = Rules::load(None).expect("built in");
        let mut profile = Profile::default();
        for (stack, n) in [
            ("weir-relay;weir_relay::worker;memcpy", 1),
            ("weir-relay;weir_relay::worker;aes_gcm_enc_update_vaes_avx512", 2),
            ("weir-relay;send;tcp_sendmsg_[k];skb_copy_[k]", 4),
            ("weir-relay;recv;tcp_recvmsg_[k];copy_to_user_[k]", 8),
            ("weir-relay;send;tcp_sendmsg_[k];do_softirq_[k];net_rx_action_[k];tcp_ack_[k]", 16),
            (
                "weir-relay;send;tcp_sendmsg_[k];net_rx_action_[k];sock_def_readable_[k];try_to_wake_up_[k]",
                32,
            ),
            ("weir-relay;do_syscall_64_[k]", 64),
            ("[idle]", 128),
            ("[others];make", 256),
        ] {
            profile.add(stack.split(';').map(String::from).collect(), n);
        }
        assert_eq!(parts(&profile, &rules), [1, 2, 4, 8, 16, 32, 64]);
    }
}
