//! cachegrind's output file: what was simulated, and the totals.
//!
//! ```text
//! desc: D1 cache:         49152 B, 64 B, 12-way associative
//! events: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw
//! summary: 22801496 192608 15961 7830852 39258 21344 5467199 29787 13784
//! ```
//!
//! Promises: values are found by the names in `events:`. Refuses: a file without a summary, or of a run that
//! did not simulate caches.

use crate::model::LabError;

/// The events of one run, start-up included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub instructions: u64,
    pub data_references: u64,
    pub i1_misses: u64,
    pub d1_misses: u64,
    pub ll_instruction_misses: u64,
    pub ll_data_misses: u64,
    /// `D1 cache: 49152 B, 64 B, 12-way associative`.
    pub caches: Vec<String>,
}

impl Totals {
    pub fn ll_references(&self) -> u64 {
        self.i1_misses + self.d1_misses
    }

    pub fn ll_misses(&self) -> u64 {
        self.ll_instruction_misses + self.ll_data_misses
    }
}

pub fn parse(text: &str) -> Result<Totals, LabError> {
    let line = |key: &str| text.lines().find_map(|l| l.strip_prefix(key));
    let damaged = |what: &str| LabError::new(format!("cachegrind's file: {what}; was the run cut short?"));
    let events: Vec<&str> =
        line("events:").ok_or_else(|| damaged("no `events:` line"))?.split_whitespace().collect();
    let summary = line("summary:").ok_or_else(|| damaged("no `summary:` line"))?;
    let counts: Vec<u64> = summary
        .split_whitespace()
        .map(|n| n.parse().map_err(|_| damaged(&format!("`{n}` in its summary is no number"))))
        .collect::<Result<_, _>>()?;
    let of = |names: &[&str]| -> Result<u64, LabError> {
        let mut sum = 0;
        for name in names {
            let at = events.iter().position(|e| e == name);
            let at = at.ok_or_else(|| damaged(&format!("no value `{name}`")))?;
            // callgrind leaves out zeros at the end
            sum += counts.get(at).unwrap_or(&0);
        }
        Ok(sum)
    };
    let described = text.lines().filter_map(|l| l.strip_prefix("desc:")).filter(|l| l.contains(" cache:"));
    Ok(Totals {
        instructions: of(&["Ir"])?,
        data_references: of(&["Dr", "Dw"])?,
        i1_misses: of(&["I1mr"])?,
        d1_misses: of(&["D1mr", "D1mw"])?,
        ll_instruction_misses: of(&["ILmr"])?,
        ll_data_misses: of(&["DLmr", "DLmw"])?,
        caches: described.map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
desc: I1 cache:         32768 B, 64 B, 8-way associative
desc: D1 cache:         49152 B, 64 B, 12-way associative
cmd: x
events: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw
fl=a.c
fn=main
1 10 0 0 0 0 0 0 0 0
summary: 1000 8 7 300 20 5 200 10 3
";

    #[test]
    fn totals_are_found_by_the_names_of_events() {
        let totals = parse(TEXT).expect("whole");
        assert_eq!((totals.instructions, totals.data_references), (1000, 500));
        assert_eq!((totals.ll_references(), totals.ll_misses()), (38, 15));
        assert_eq!(totals.caches[1], "D1 cache: 49152 B, 64 B, 12-way associative");
        let turned = TEXT.replace("events: Ir I1mr", "events: I1mr Ir");
        assert_eq!(parse(&turned).expect("whole").instructions, 8);
    }

    #[test]
    fn a_file_cut_short_and_one_without_caches_are_refused() {
        let refused = |text: &str| parse(text).expect_err("refused").said;
        assert!(refused(TEXT.split("summary").next().expect("a head")).contains("no `summary:` line"));
        assert!(refused("events: Ir\nsummary: 5\n").contains("no value `Dr`"));
        assert!(refused(&TEXT.replace("1000", "many")).contains("`many`"));
    }
}
