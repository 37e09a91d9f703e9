//! Tests of what a machine may not have.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// Says, once a program, that the tests of `name` are skipped here, past the capture of the test harness, which hides what a passing
/// test prints.
///
/// ```
/// undraft_testing::skip_absent("a-device-of-another-world");
/// ```
///
/// # Panics
/// If `UNDRAFT_REQUIRE` (names with commas between) lists it.
pub fn skip_absent(name: &str) {
    let required = std::env::var("UNDRAFT_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|r| r.trim() == name),
        "{name} is not available on this machine, and UNDRAFT_REQUIRE asks for it"
    );
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.insert(name.to_owned()) {
        let _ = writeln!(std::io::stderr(), "skipped: {name} is not available on this machine");
    }
}
