//! What tests do where the machine lacks what they need: rights, namespaces, a program, a feature of the kernel.
//!
//! Such a test says so aloud and passes, so that `./dev test` works without root. With `PLEACH_REQUIRE_LAB=1`, as `.ci/run`
//! sets it, it fails: there a skipped test would prove nothing. A feature that the kernel was built without cannot be installed: a
//! test of one says so aloud and passes also there ([`skip_unbuilt`]).

use core::fmt::Display;
use std::env;

/// Says on stderr that a test is skipped, and `why`.
///
/// # Panics
/// If the variable `PLEACH_REQUIRE_LAB` is 1.
pub fn skip(why: impl Display) {
    let is_required = env::var_os("PLEACH_REQUIRE_LAB").is_some_and(|value| value == "1");
    assert!(
        !is_required,
        "PLEACH_REQUIRE_LAB=1, but this would be skipped: {why}"
    );
    eprintln!("SKIPPED, nothing was tested: {why}");
}

/// Says on stderr that a test is skipped because the kernel was built without `feature`.
pub fn skip_unbuilt(feature: impl Display) {
    eprintln!("SKIPPED, nothing was tested: this kernel was built without {feature}");
}
