//! The SPD of a protected configuration: what rules it has, who answers, and what packets ask of it.
//!
//! Promises: every value is one that can run, and rule sets are named by their shape and size. Refuses: sets
//! larger than any a gateway was ever given.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use weir_core::ipsec::flow_cache::BUCKETS;
use weir_core::ipsec::spd::synthetic::Shape;

/// Rules of a set: ten times what the field calls large.
pub const RULES_MAX: u32 = 100_000;
/// Changes a second: above it the control side has no time for anything else.
pub const CHURN_MAX: u32 = 10_000;

/// What an SPD is beside its list of policies; the default is how a gateway comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spd {
    #[serde(default)]
    pub lookup: LookupBy,
    /// The number of buckets of each flow cache, where there is one.
    #[serde(default = "buckets")]
    pub buckets: u32,
    /// Index of the policy packets match, from 1; `None` is the last.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matching: Option<u32>,
    /// A synthetic set in place of a list of which one policy matches; packets are of flows its rules match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<RuleSet>,
    #[serde(default)]
    pub action: Action,
    /// Policies taken out or put back a second, while packets pass.
    #[serde(default)]
    pub churn: u32,
}

fn buckets() -> u32 {
    BUCKETS
}

impl Default for Spd {
    fn default() -> Spd {
        Spd {
            lookup: LookupBy::Gateway,
            buckets: BUCKETS,
            matching: None,
            rules: None,
            action: Action::Protect,
            churn: 0,
        }
    }
}

impl Spd {
    pub fn is_default(&self) -> bool {
        *self == Spd::default()
    }
}

/// Who answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LookupBy {
    /// What a gateway does where nothing is said: no cache, and the classifier where the set is large.
    #[default]
    Gateway,
    /// The ordered scan alone.
    Linear,
    /// The classifier alone.
    Classifier,
    /// The flow cache of the direction and family measured, and the classifier for what it does not know.
    Cache,
}

/// What becomes of packets of the policies they match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    #[default]
    Protect,
    /// Packets come in sealed by a tunnel, are opened, and leave as cleartext by an enforced port whose policy lets
    /// them.
    Bypass,
}

/// A shape and a number of rules: `acl-10000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuleSet {
    pub shape: Shape,
    pub count: u32,
}

impl RuleSet {
    pub fn named(name: &str) -> Option<RuleSet> {
        let (shape, count) = name.rsplit_once('-')?;
        let count = count.parse().ok().filter(|count| (2..=RULES_MAX).contains(count))?;
        Some(RuleSet { shape: Shape::named(shape)?, count })
    }

    /// How names are made, for errors.
    pub fn expected() -> String {
        let shapes = Shape::ALL.map(Shape::name).join(", ");
        format!(
            "a shape and a number of rules from 2 to {RULES_MAX}, such as \"acl-10000\"; shapes are {shapes}"
        )
    }
}

impl fmt::Display for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.shape.name(), self.count)
    }
}

impl Serialize for RuleSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_string())
    }
}

impl<'de> Deserialize<'de> for RuleSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        RuleSet::named(&name)
            .ok_or_else(|| de::Error::custom(format!("rules \"{name}\", expected {}", RuleSet::expected())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_sets_are_found_by_their_names_and_no_others() {
        for shape in Shape::ALL {
            let set = RuleSet { shape, count: 1000 };
            assert_eq!(RuleSet::named(&set.to_string()), Some(set));
        }
        for none in ["acl", "acl-", "acl-1", "acl-100001", "acl1-1000", "-1000", ""] {
            assert_eq!(RuleSet::named(none), None, "{none}");
        }
    }

    #[test]
    fn what_says_nothing_of_it_has_the_spd_a_gateway_comes_with() {
        let read: Spd = serde_json::from_str("{}").expect("all has a value");
        assert!(read.is_default());
        let deep = Spd { matching: Some(10), lookup: LookupBy::Cache, ..Spd::default() };
        let text = serde_json::to_string(&deep).expect("plain");
        assert!(text.contains("\"match\":10") && text.contains("\"lookup\":\"cache\""), "{text}");
        assert_eq!(serde_json::from_str::<Spd>(&text).expect("its own"), deep);
    }
}
