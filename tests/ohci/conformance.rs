//! `docs/ohci.md` states the rules; this holds the tests against it.

use crate::chapter::Chapter;

#[test]
fn conformance_every_rule_of_the_chapter_has_a_test() {
    let chapter = Chapter { file: "docs/ohci.md", tests: "tests/ohci", prefixes: &["OHCI"] };
    chapter.check(150, "cargo test --test ohci conformance");
}
