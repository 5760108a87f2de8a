//! Rules, in data, for what a stack is: idle or at work, and which kind of work its leaf does.
//!
//! Promises: every function has a category; one no rule names is `other`. Refuses: a rules file with an unknown
//! key, a category without a name.

use std::path::Path;

use serde::Deserialize;

use super::{OTHERS, Profile};
use crate::experiment::text::{from_toml, matches};
use crate::model::LabError;

/// Category of stacks that are idle.
pub const IDLE: &str = "idle";
/// Category of stacks that are not the SUT's.
pub const ELSEWHERE: &str = "other processes";
/// Category of functions no rule names.
pub const OTHER: &str = "other";

const BUILT_IN: &str = include_str!("rules.toml");

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    idle: Idle,
    #[serde(default)]
    category: Vec<Category>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Idle {
    frames: Vec<String>,
    #[serde(default)]
    woken: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Category {
    name: String,
    #[serde(default)]
    functions: Vec<String>,
    #[serde(default)]
    modules: Vec<String>,
}

impl Rules {
    /// The rules of `file`, or the built-in ones.
    pub fn load(file: Option<&Path>) -> Result<Rules, LabError> {
        let Some(path) = file else { return from_toml("built-in rules", BUILT_IN) };
        let text =
            std::fs::read_to_string(path).map_err(|e| LabError::new(format!("{}: {e}", path.display())))?;
        from_toml(&path.display().to_string(), &text)
    }

    /// Whether nothing was being done: an idle frame, and nothing nearer the leaf that woke it.
    pub fn is_idle(&self, stack: &[String]) -> bool {
        let any =
            |patterns: &[String], frame: &str| patterns.iter().any(|p| matches(p, super::function(frame)));
        let Some(at) = stack.iter().rposition(|f| any(&self.idle.frames, f)) else { return false };
        !stack[at + 1..].iter().any(|f| any(&self.idle.woken, f))
    }

    /// Whether the SUT or its kernel was at work: neither idle nor busy with other processes.
    pub fn is_work(&self, stack: &[String]) -> bool {
        !self.is_idle(stack) && stack.first().is_none_or(|root| root != OTHERS)
    }

    /// What kind of work `function` does, a name without its mark.
    pub fn category(&self, function: &str, profile: &Profile) -> &str {
        let module = profile.modules.get(function).map(String::as_str);
        let bracketed = function.strip_prefix('[').and_then(|f| f.strip_suffix(']'));
        let module = module.or(bracketed).unwrap_or_default();
        let meant = |c: &&Category| {
            c.functions.iter().any(|p| matches(p, function))
                || (!module.is_empty() && c.modules.iter().any(|p| matches(p, module)))
        };
        self.category.iter().find(meant).map_or(OTHER, |c| &c.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(frames: &str) -> Vec<String> {
        frames.split(';').map(String::from).collect()
    }

    #[test]
    fn an_interrupt_on_an_idle_cpu_is_work() {
        let rules = Rules::load(None).expect("built in");
        for idle in
            ["swapper;cpu_startup_entry;do_idle;pv_native_safe_halt_[k]", "fork_exit;sched_idletd;cpu_idle"]
        {
            assert!(rules.is_idle(&stack(idle)), "{idle}");
        }
        let woken =
            "swapper;do_idle;default_idle;asm_sysvec_apic_timer_interrupt;handle_softirqs;net_rx_action";
        assert!(!rules.is_idle(&stack(woken)));
        assert!(!rules.is_idle(&stack("weir;poll;rx")) && rules.is_work(&stack("weir;poll;rx")));
        assert!(!rules.is_idle(&stack("[others]")) && !rules.is_work(&stack("[others]")));
    }

    #[test]
    fn functions_fall_into_categories_by_name_then_by_module_and_the_rest_is_other() {
        let rules = Rules::load(None).expect("built in");
        let mut profile = Profile::default();
        profile.modules.insert("helper".into(), "if_cxgbe.ko".into());
        let expected = [
            ("aesni_gcm_encrypt", "crypto"),
            ("memmove_erms", "copy"),
            ("kmem_cache_alloc_noprof_[k]", "allocation"),
            ("__netif_receive_skb_core", "socket/skb"),
            ("rn_match", "lookup"),
            ("ip_tryforward", "forwarding"),
            ("helper", "network driver"),
            ("[libcrypto.so.3]", "crypto"),
            ("weir::worker::turn", "relay/user code"),
            ("frobnicate", OTHER),
        ];
        for (function, category) in expected {
            assert_eq!(rules.category(super::super::function(function), &profile), category, "{function}");
        }
    }

    #[test]
    fn a_rules_file_is_refused_with_line_and_column() {
        let error =
            from_toml::<Rules>("r.toml", "[idle]\nframes = []\nframe = []\n").expect_err("unknown key").said;
        assert!(error.starts_with("r.toml:3:1: unknown field `frame`"), "{error}");
    }
}
