//! Treatment of tests whose requirements the machine does not meet: permissions, namespaces, a program, a feature of
//! the kernel.
//!
//! Such a test prints a message and passes, so that `./dev test` works without root. With `PLEACH_REQUIRE_LAB=1`, as
//! set by `.ci/run`, it fails, because there a skipped test would prove nothing. A feature that the kernel was built
//! without cannot be installed: a test of such a feature prints a message and passes in both cases ([`skip_unbuilt`]).

use core::fmt::Display;
use std::env;

/// Prints on stderr that a test is skipped, and the reason `why`.
///
/// # Panics
/// Panics if the variable `PLEACH_REQUIRE_LAB` is 1.
pub fn skip(why: impl Display) {
    let is_required = env::var_os("PLEACH_REQUIRE_LAB").is_some_and(|value| value == "1");
    assert!(
        !is_required,
        "PLEACH_REQUIRE_LAB=1, but this would be skipped: {why}"
    );
    eprintln!("SKIPPED, nothing was tested: {why}");
}

/// Prints on stderr that a test is skipped because the kernel was built without `feature`.
pub fn skip_unbuilt(feature: impl Display) {
    eprintln!("SKIPPED, nothing was tested: this kernel was built without {feature}");
}
