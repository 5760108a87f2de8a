//! Folded stacks: one line a stack, frames root first joined by `;`, a space, the number of samples.
//!
//! Promises: `# key: value` lines are kept as facts, `event` among them names what was counted.
//! Refuses: a line without a count, a count that is no whole number.

use std::collections::BTreeMap;

use super::Fault;
use crate::profile::Profile;

/// The stack and its samples; `None` when the line is not of this form.
pub fn split(line: &str) -> Option<(&str, u64)> {
    let (stack, count) = line.trim_end().rsplit_once(' ')?;
    (!stack.trim().is_empty()).then_some((stack, count.parse().ok()?))
}

pub fn parse(text: &str) -> Result<(Profile, BTreeMap<String, String>), Fault> {
    let mut profile = Profile { event: "samples".into(), ..Profile::default() };
    let mut facts = BTreeMap::new();
    for (line, number) in text.lines().zip(1..) {
        if let Some(comment) = line.strip_prefix('#') {
            if let Some((key, value)) = comment.split_once(':') {
                facts.insert(key.trim().to_string(), value.trim().to_string());
            }
        } else if !line.trim().is_empty() {
            let (stack, samples) = split(line).ok_or_else(|| Fault {
                line: number,
                message: format!(
                    "expected `frame;frame count`, got `{}`; the count is a whole number of samples",
                    line.chars().take(60).collect::<String>()
                ),
            })?;
            if samples > 0 {
                profile.add(stack.split(';').map(String::from).collect(), samples);
            }
        }
    }
    if let Some(event) = facts.get("event") {
        profile.event = event.clone();
    }
    Ok((profile, facts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_may_hold_spaces_and_the_header_names_the_event() {
        let (profile, facts) =
            parse("# event: cycles\n# cpus: 2\nmain;<A as B>::rx 3\n\nmain 1\n").expect("folded");
        assert_eq!((profile.event.as_str(), profile.samples()), ("cycles", 4));
        assert_eq!(profile.stacks[&vec!["main".to_string(), "<A as B>::rx".into()]], 3);
        assert_eq!(facts["cpus"], "2");
    }

    #[test]
    fn what_was_written_is_read_back() {
        let text = "main;rx 4\nmain;tx 2\n";
        assert_eq!(parse(text).expect("folded").0.folded(), text);
    }

    #[test]
    fn a_line_without_a_count_is_refused_by_number() {
        let fault = parse("main;rx 4\nmain;tx many\n").expect_err("no count");
        assert_eq!(fault.line, 2);
        assert!(fault.message.contains("got `main;tx many`"), "{}", fault.message);
    }
}
