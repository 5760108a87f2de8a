//! `weir show cache`: how SPDs were asked, as tables.

use super::table;
use crate::view;
use weir_core::state::amount;

pub fn cache(cache: &view::Cache) -> String {
    if cache.spds.is_empty() {
        return "no spd is configured\n".to_owned();
    }
    let mut out = format!(
        "classifier {}, oracle {}\n",
        cache.classifier,
        if cache.oracle { "on: every answer is held against the ordered scan" } else { "off" }
    );
    out += &ways(cache);
    out += &rules(cache);
    let disagreed: u64 = cache.ways.iter().map(|w| w.lookups.disagreed).sum();
    if disagreed > 0 {
        out += &format!(
            "! {disagreed} answers were not the ordered scan's: a defect of weir; report them, and set the caches and spd-classifier to \"off\"\n"
        );
    }
    out
}

fn ways(cache: &view::Cache) -> String {
    let row = |w: &view::CacheWay| {
        let l = &w.lookups;
        let of_cache = |n: u64| if w.on { n.to_string() } else { "-".to_owned() };
        [
            w.direction.clone(),
            w.family.clone(),
            if w.on { "on" } else { "off" }.to_owned(),
            of_cache(w.buckets),
            if w.on {
                format!("{} ({})", w.occupied, percent(w.occupied, w.buckets))
            } else {
                "-".to_owned()
            },
            if w.on { amount(w.bytes) } else { "-".to_owned() },
            of_cache(l.hit),
            of_cache(l.miss),
            of_cache(l.collision),
            of_cache(l.stale),
            percent(l.hit, l.hit + l.miss),
            l.first.to_string(),
            l.outside.to_string(),
            l.classified.to_string(),
            l.scanned.to_string(),
            l.disagreed.to_string(),
        ]
    };
    let head = [
        "way",
        "family",
        "cache",
        "buckets",
        "occupied",
        "memory",
        "hit",
        "miss",
        "collision",
        "stale",
        "hit rate",
        "by first rule",
        "outside all",
        "by classifier",
        "by scan",
        "disagreed",
    ];
    table(head, 3..16, cache.ways.iter().map(row).collect())
}

fn rules(cache: &view::Cache) -> String {
    let rows = cache.spds.iter().flat_map(|spd| {
        spd.families.iter().filter(|f| f.rules > 0).map(move |f| {
            [
                spd.spd.clone(),
                spd.direction.clone(),
                f.family.clone(),
                f.rules.to_string(),
                f.layer.clone(),
                f.tables.to_string(),
                f.longest_chain.to_string(),
                f.in_no_table.to_string(),
                f.most_comparisons.to_string(),
                amount(spd.bytes),
            ]
        })
    });
    let head = [
        "spd",
        "way",
        "family",
        "rules",
        "without cache",
        "tables",
        "longest chain",
        "in no table",
        "comparisons at most",
        "memory of the way",
    ];
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() { String::new() } else { "\n".to_owned() + &table(head, 3..10, rows) }
}

/// `12.3%`, or `-` of nothing.
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1}%", 100.0 * part as f64 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(on: bool, lookups: view::Lookups) -> view::CacheWay {
        let (buckets, occupied, bytes) = if on { (1024, 256, 32 << 10) } else { (0, 0, 0) };
        view::CacheWay {
            direction: "out".into(),
            family: "ipv4".into(),
            on,
            buckets,
            occupied,
            bytes,
            lookups,
        }
    }

    #[test]
    fn a_cache_says_how_full_it_is_and_how_often_it_knew() {
        let lookups =
            view::Lookups { hit: 900, miss: 100, collision: 7, classified: 100, ..view::Lookups::default() };
        let spd = view::SpdRules { spd: "wan".into(), ..view::SpdRules::default() };
        let all =
            view::Cache { ways: vec![way(true, lookups)], spds: vec![spd.clone()], ..view::Cache::default() };
        let text = cache(&all);
        assert!(text.contains("256 (25.0%)") && text.contains("32 KiB") && text.contains("90.0%"), "{text}");
        assert!(!text.contains('!'), "{text}");
        let wrong = view::Lookups { scanned: 5, disagreed: 2, ..view::Lookups::default() };
        let text =
            cache(&view::Cache { ways: vec![way(false, wrong)], spds: vec![spd], ..view::Cache::default() });
        assert!(text.contains("! 2 answers were not the ordered scan's"), "{text}");
    }

    #[test]
    fn without_an_spd_there_is_nothing_to_tell() {
        assert_eq!(cache(&view::Cache::default()), "no spd is configured\n");
    }
}
