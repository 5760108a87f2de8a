//! `verify` on trees of the published form: what it promises of each class, and of hostile input.

use std::fs;
use std::path::PathBuf;

use weir_lab::stats::ministat::{Set, Style, block};
use weir_lab::verify::show::Counts;
use weir_lab::verify::{Class, Verified, verify};

const OLD: [f64; 5] = [3_771_105.0, 3_820_007.5, 3_799_450.0, 3_806_112.0, 3_788_901.0];
const NEW: [f64; 5] = [4_010_233.0, 3_990_871.5, 4_052_118.0, 4_031_744.0, 4_007_302.0];

/// A tree of its own for each test, removed at the end.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Tree {
        let dir = std::env::temp_dir().join(format!("weir-lab-verify-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("space for a tree");
        Tree(dir)
    }

    fn with(self, name: &str, text: impl AsRef<[u8]>) -> Tree {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("in the tree")).expect("space");
        fs::write(path, text).expect("space");
        self
    }

    /// A README with this block in a fence, and prose around it.
    fn readme(self, block: &str) -> Tree {
        self.with("README.md", format!("# Old against new\n\n```\n{block}```\n\nThat is all.\n"))
    }

    fn data(self) -> Tree {
        self.with("old.pps", lines(&OLD)).with("new.pps", lines(&NEW))
    }

    fn verify(&self) -> Verified {
        verify(&self.0, 5.0).expect("a folder")
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn lines(values: &[f64]) -> String {
    values.iter().map(|v| format!("{v}\n")).collect()
}

fn printed(old: &str, new: &str, style: Style) -> String {
    block(&[Set::new(old, &OLD), Set::new(new, &NEW)], style).expect("two sets of five")
}

fn plain() -> String {
    printed("old.pps", "new.pps", Style::default())
}

fn only(verified: &Verified) -> &weir_lab::verify::Block {
    assert_eq!(verified.blocks.len(), 1, "{:?}", verified.blocks);
    &verified.blocks[0]
}

fn class(tree: &Tree) -> Class {
    only(&tree.verify()).settled.class
}

#[test]
fn a_block_that_follows_from_the_files_its_legend_names_is_reproduced() {
    let tree = Tree::new("plain").data().readme(&plain());
    let verified = tree.verify();
    assert_eq!(
        only(&verified).settled.class,
        Class::Reproduced,
        "{verified:?}",
        verified = verified.text(true)
    );
    assert_eq!(only(&verified).printed.line, 4);
    let counts = Counts { blocks: 1, reproduced: 1, whitespace: 0, differs: 0, no_data: 0 };
    assert_eq!(verified.counts(), counts);
}

#[test]
fn legends_are_the_authors_words_and_sets_are_known_by_their_figures() {
    let block = printed("before (default)", "with the patch: packets a second", Style::default());
    assert_eq!(class(&Tree::new("words").data().readme(&block)), Class::Reproduced);
}

#[test]
fn an_edited_digit_differs_and_is_named_with_both_figures() {
    let block = plain().replace("4007302", "4007502").replace("3806112", "3806113");
    let block = block.replace("3797115.1", "3797116.1");
    let tree = Tree::new("digit").data().readme(&block);
    let verified = tree.verify();
    let settled = &only(&verified).settled;
    assert_eq!(settled.class, Class::Differs);
    let d = settled.difference.as_ref().expect("a figure");
    assert_eq!((d.figure.as_str(), d.printed.as_str()), ("Avg of x (old.pps)", "3797116.1"));
    assert_eq!(d.derived, "3797115.1");
    assert!(settled.reason.contains("edited by hand"), "{}", settled.reason);
}
