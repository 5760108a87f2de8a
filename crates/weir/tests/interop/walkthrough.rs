//! The page of docs/walk-throughs that needs a kernel with ESP is followed in the second kernel; the others are by
//! `tests/walkthroughs`.

use std::io::Write as _;
use std::path::Path;

use weir_testing::shell;

use crate::second_kernel::there;
use crate::strongswan::missing_daemon;

#[test]
fn two_bgp_routers_that_are_ike_gateways_are_as_the_page_says() {
    let name = "walkthrough::two_bgp_routers_that_are_ike_gateways_are_as_the_page_says";
    let missing = missing_daemon().or_else(shell::missing);
    if let Some(missing) = missing.or_else(|| shell::absent(&["bird", "birdc", "ethtool"])) {
        writeln!(std::io::stderr(), "SKIP {name}: needs {missing}").expect("stderr is open");
        return;
    }
    there(name, || {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/walk-throughs/gateways.md");
        let text = std::fs::read_to_string(page).expect("the page is in the tree");
        let programs = Path::new(env!("CARGO_BIN_EXE_weir")).parent().expect("a file has a folder");
        shell::follow(&text, programs, shell::PATIENCE)
            .unwrap_or_else(|why| panic!("docs/walk-throughs/gateways.md, {why}"));
    });
}
