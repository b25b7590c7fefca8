//! `docs/ehci.md` states the rules; this holds the tests against it.

use crate::chapter::Chapter;

#[test]
fn conformance_every_rule_of_the_chapter_has_a_test() {
    let chapter = Chapter { file: "docs/ehci.md", tests: "tests/ehci", prefixes: &["EHCI"] };
    chapter.check(220, "cargo test --test ehci conformance");
}
