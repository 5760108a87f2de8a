//! Placement on recorded machines. A recording is one text per machine, `file: content` a line, so a
//! machine is readable at a glance: `tests/sysfs/*.txt`.

use std::fs;
use std::path::{Path, PathBuf};

use weir_io::cpu::{Placement, Topology, parse_list};

/// A recorded tree laid out as sysfs lays it, gone when dropped.
struct Tree(PathBuf);

impl Tree {
    fn recorded(machine: &str) -> Tree {
        let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/sysfs/{machine}.txt"));
        let text = fs::read_to_string(&recording).expect("the recording is in the tree");
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("main").replace("::", "-");
        let root = std::env::temp_dir().join(format!("weir-sysfs-{}-{name}-{machine}", std::process::id()));
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            let (file, content) = line.split_once(':').expect("`file: content`");
            let path = root.join(file);
            fs::create_dir_all(path.parent().expect("inside the tree")).expect("a folder");
            fs::write(path, format!("{}\n", content.trim())).expect("a file");
        }
        Tree(root)
    }

    fn topology(&self) -> Topology {
        Topology::read(&self.0).expect("a readable tree")
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn smt_machine_gets_one_worker_per_core_and_idle_siblings() {
    let topology = Tree::recorded("xeon-4-cores-8-threads").topology();
    assert!(topology.smt());
    let placement = Placement::by_core(&topology, None);
    assert_eq!(placement.cpus, [0, 1, 2, 3]);
    assert!(placement.reason.contains("siblings left idle"), "{}", placement.reason);
}

#[test]
fn adjacent_siblings_are_not_taken_for_cores() {
    let topology = Tree::recorded("desktop-4-cores-8-threads-adjacent").topology();
    assert_eq!(Placement::by_core(&topology, None).cpus, [0, 2, 4, 6]);
}

#[test]
fn machine_without_smt_gets_a_worker_per_cpu() {
    let topology = Tree::recorded("vm-2-cores").topology();
    assert!(!topology.smt());
    let placement = Placement::by_core(&topology, None);
    assert_eq!(placement.cpus, [0, 1]);
    assert!(!placement.reason.contains("siblings"));
}

#[test]
fn offline_sibling_makes_its_twin_a_whole_core() {
    let topology = Tree::recorded("xeon-siblings-offline").topology();
    assert_eq!((topology.cpus.len(), topology.cores()), (5, 4));
    assert_eq!(Placement::by_core(&topology, None).cpus, [1, 2, 3, 4]);
}

#[test]
fn two_packages_with_equal_core_ids_are_four_cores() {
    let topology = Tree::recorded("two-packages").topology();
    assert_eq!(topology.cores(), 4);
    assert_eq!(Placement::by_core(&topology, None).cpus, [0, 1, 2, 3]);
}

#[test]
fn isolated_cpus_are_preferred() {
    let topology = Tree::recorded("xeon-isolated").topology();
    let placement = Placement::by_core(&topology, None);
    assert_eq!(placement.cpus, [2, 3]);
    assert!(placement.reason.contains("isolated"), "{}", placement.reason);
}

#[test]
fn explicit_list_is_kept_in_order_and_siblings_are_said() {
    let topology = Tree::recorded("xeon-4-cores-8-threads").topology();
    let placement = Placement::explicit(&topology, &[4, 0]).expect("both online");
    assert_eq!(placement.cpus, [4, 0]);
    assert_eq!(placement.warnings, ["cpu 0 and cpu 4 share one core: both workers will be slower"]);
}

#[test]
fn impossible_lists_are_refused_with_what_is_there() {
    let topology = Tree::recorded("vm-2-cores").topology();
    let refused = |list: &[u32]| Placement::explicit(&topology, list).expect_err("refused").to_string();
    assert_eq!(refused(&[7]), "cpus: cpu 7 is not online; online are 0, 1");
    assert_eq!(refused(&[1, 1]), "cpus: cpu 1 is named twice; a worker needs a cpu of its own");
    assert!(refused(&[]).contains("\"auto\""));
}

#[test]
fn limit_of_workers_is_kept() {
    let topology = Tree::recorded("xeon-4-cores-8-threads").topology();
    assert_eq!(Placement::by_core(&topology, Some(2)).cpus, [0, 1]);
}

#[test]
fn tree_that_is_not_there_is_one_sentence() {
    let error = Topology::read(Path::new("/nonexistent")).expect_err("no tree").to_string();
    assert!(error.starts_with("cpu topology: /nonexistent/online cannot be read"), "{error}");
}

#[test]
fn lists_are_read_as_the_kernel_writes_them() {
    assert_eq!(parse_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
    assert_eq!(parse_list("\n"), Some(vec![]));
    assert_eq!(parse_list("3-1"), None);
    assert_eq!(parse_list("a"), None);
    assert_eq!(parse_list("0-4000000000"), None);
}
