//! `state_dir` and `accept_replay_risk` of `[ipsec]`: where what SAs used is kept, and whether they may do without.
//!
//! Refuses a relative path: the daemon and who reads its file need not be in one folder.

use std::path::PathBuf;

use toml::de::DeValue;

use crate::config::read::Fields;
use crate::config::source::Complaints;

/// The table `state` as the file has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub folder: Option<PathBuf>,
    /// SAs run although what they used before is not known.
    pub accept_risk: bool,
}

pub(super) fn read(fields: &Fields<'_>, complaints: &mut Complaints) -> State {
    let folder = fields.get("state_dir").and_then(|v| {
        let text = v.text("an absolute path", "state_dir = \"/var/lib/weir\"", complaints)?;
        if !text.starts_with('/') || text.contains('\0') {
            v.refuse("an absolute path", "write `\"/var/lib/weir\"`", complaints);
            return None;
        }
        Some(PathBuf::from(text))
    });
    let accept_risk = fields.get("accept_replay_risk").is_some_and(|v| match v.value {
        DeValue::Boolean(b) => *b,
        _ => {
            v.refuse("`true` or `false`", "write `false` without quotes, or remove it", complaints);
            false
        }
    });
    State { folder, accept_risk }
}
