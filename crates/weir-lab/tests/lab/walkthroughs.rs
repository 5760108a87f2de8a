//! The pages of docs/walk-throughs that need the lab are followed word for word, as the others are by weir's tests.

use std::io::Write as _;
use std::path::Path;

use weir_testing::shell;

#[test]
fn an_experiment_of_ones_own_is_as_the_page_says() {
    if let Some(missing) = shell::missing() {
        let test = "an_experiment_of_ones_own_is_as_the_page_says";
        writeln!(std::io::stderr(), "SKIP {test}: needs {missing}").expect("stderr is open");
        return;
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/walk-throughs/experiment.md");
    let text = std::fs::read_to_string(page).expect("the page is in the tree");
    let programs = Path::new(env!("CARGO_BIN_EXE_weir-lab")).parent().expect("a file has a folder");
    shell::follow(&text, programs, shell::PATIENCE)
        .unwrap_or_else(|why| panic!("docs/walk-throughs/experiment.md, {why}"));
}
