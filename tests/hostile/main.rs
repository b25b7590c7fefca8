//! Guests that mean harm: each entry of `docs/hostile.md` as a story, with the behaviour it requires and a
//! bound on the controller's work, counted in accesses to guest memory.
//!
//! A test is named after its entry: `ohci_hg_5_...` tests OHCI-HG-5.

#![allow(unreachable_pub, reason = "the stories share rigs")]

#[path = "../chapter/mod.rs"]
mod chapter;
#[path = "../driver/mod.rs"]
mod driver;

mod ehci;
mod forge;
mod log;
mod ohci;

#[test]
fn every_entry_of_the_chapter_has_a_test() {
    let chapter = chapter::Chapter {
        file: "docs/hostile.md",
        tests: "tests/hostile",
        prefixes: &["OHCI", "EHCI"],
    };
    chapter.check(120, "cargo test --test hostile every_entry");
}
