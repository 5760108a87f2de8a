//! Profiles of other people's campaigns: what is known of them is found unaided.

use std::io::Write;
use std::path::PathBuf;

use weir_lab::profile::differential::{Differential, Presence, Side, differential};
use weir_lab::profile::import::{Form, Recording};
use weir_lab::profile::rules::Rules;

const CAMPAIGN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../shared/corpus/netbenches/Xeon_E5-2697Av4_16Cores/Mellanox_ConnectX-4/firewalls/results/\
     fbsd14-n277887-IPSEC/RAW"
);

/// (samples in the heads of the blocks of GENERIC.inet4, IPSEC.inet4, GENERIC.inet6, IPSEC.inet6), as grep and
/// awk add them up.
const SAMPLES: [(&str, u64); 4] = [
    ("GENERIC.inet4", 575_027),
    ("IPSEC.inet4", 587_701),
    ("GENERIC.inet6", 646_285),
    ("IPSEC.inet6", 657_166),
];

fn recording(test: &str, name: &str) -> Option<Recording> {
    let path = PathBuf::from(CAMPAIGN).join(format!("bench.n277887{name}.1.pmc.graph"));
    if !path.exists() {
        let _ = writeln!(std::io::stderr(), "SKIP {test}: {} is not there", path.display());
        return None;
    }
    Some(Recording::read(&path).expect("a graph of pmcstat"))
}

/// IPSEC against IPSEC_SUPPORT, whose profiles are named after the kernel configuration GENERIC.
fn compared(test: &str, family: &str, pps: [f64; 2]) -> Option<Differential> {
    let side = |name: &str, pps: f64| {
        let recording = recording(test, &format!("{name}.{family}"))?;
        let cpus = recording.parts.len();
        Some(Side { recordings: vec![recording], pps: if pps > 0.0 { vec![pps] } else { vec![] }, cpus })
    };
    let (before, after) = (side("GENERIC", pps[0])?, side("IPSEC", pps[1])?);
    Some(differential(&before, &after, &Rules::load(None).expect("built in")).expect("comparable"))
}

#[test]
fn every_sample_of_pmcstat_graphs_is_kept() {
    for (name, samples) in SAMPLES {
        let Some(recording) = recording("every_sample_of_pmcstat_graphs_is_kept", name) else { return };
        assert_eq!((recording.form, recording.parts.len()), (Form::PmcstatGraph, 32), "{name}");
        assert_eq!(recording.whole().samples(), samples, "{name}");
        assert_eq!(recording.parts[0].event, "cpu_clk_unhalted.thread_p");
    }
}

#[test]
fn what_building_ipsec_in_costs_is_found_unaided() {
    for (family, capability, percent) in
        [("inet4", "ipsec4_capability", "1.92"), ("inet6", "ipsec6_capability", "1.38")]
    {
        let Some(d) = compared("what_building_ipsec_in_costs_is_found_unaided", family, [0.0; 2]) else {
            return;
        };
        // the two frames with the strongest evidence, out of several hundred
        let first: Vec<&str> = d.frames[..2].iter().map(|f| f.name.as_str()).collect();
        assert!(first.contains(&"key_havesp") && first.contains(&capability), "{family}: {first:?}");
        assert!(d.frames.len() > 300, "{}", d.frames.len());
        for frame in &d.frames[..2] {
            assert_eq!((frame.presence, frame.own.before), (Presence::New, 0.0));
            assert!(frame.proven() && frame.own.low > 0.0, "{frame:?}");
        }
        let together: f64 = d.frames[..2].iter().map(|f| f.own.after).sum();
        assert_eq!(format!("{together:.2}"), percent, "{family}");
    }
}

#[test]
fn changes_of_frames_add_up_to_the_change_in_throughput() {
    // medians of the campaign's .pps files
    let rates = [28_544_251.0, 27_883_878.0];
    let Some(d) = compared("changes_of_frames_add_up_to_the_change_in_throughput", "inet6", rates) else {
        return;
    };
    let r = &d.reconciliation;
    let whole = 32.0 * 1e9 / rates[1] - 32.0 * 1e9 / rates[0];
    assert!((r.proven + r.others + r.idle.expect("rates are given") - whole).abs() < 1e-6, "{r:?}");
    assert!(d.frames[..2].iter().any(|f| f.name == "key_havesp"));
}
