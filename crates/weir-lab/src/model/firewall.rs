//! A firewall of the device under test, the same for every SUT that leaves it to the kernel.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FirewallRules {
    /// Established flows pass, new ones from the generator's side.
    Stateful,
    /// The same, and their source becomes the device's own address.
    Masquerade,
}

impl FirewallRules {
    /// What `nft -f` reads, with the ports packets come in and leave by.
    pub fn text(self, input: &str, output: &str) -> String {
        let mut text = format!(
            "table inet filter {{\n chain forward {{\n  type filter hook forward priority filter; policy drop;\n  \
             ct state established,related accept\n  iifname \"{input}\" accept\n }}\n}}\n"
        );
        if self == FirewallRules::Masquerade {
            text += &format!(
                "table inet nat {{\n chain postrouting {{\n  type nat hook postrouting priority srcnat;\n  \
                 oifname \"{output}\" masquerade\n }}\n}}\n"
            );
        }
        text
    }
}
