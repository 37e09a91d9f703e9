//! The suite passes a right back end, and fails one with any of many mistakes.

mod reference;

use reference::{Mutation, Reference};
use undraft_testing::conformance::{plan, run_one};
use undraft_testing::coverage::Coverage;
use undraft_testing::{Op, Suite, run_all};

undraft_testing::conformance!(reference_backend, || Some(Reference::new(None)));
undraft_testing::conformance!(absent, || None::<Reference>);

#[test]
fn a_limited_back_end_passes_by_refusing() {
    let reports = run_all(&Reference::limited());
    assert!(reports.iter().all(|r| r.passed.is_ok()), "{reports:#?}");
    assert!(reports.iter().any(|r| r.case_count == 0) && reports.iter().any(|r| r.refused_count > 0));
}

#[test]
fn every_mutant_is_caught() {
    let mut survivors = Vec::new();
    for &mutation in Mutation::ALL {
        let backend = Reference::new(Some(mutation));
        // What the operation's own suites miss, `run_all` misses too.
        let mut own = plan().into_iter().filter(|(op, ..)| mutation.ops().contains(op));
        let caught = own.find_map(|(op, suite, dtype)| {
            let report = run_one(&backend, op, suite, dtype);
            report.passed.err().map(|e| format!("{} {} {}: {e}", op.name(), suite.name(), dtype.name()))
        });
        match caught {
            Some(e) => println!("{mutation:?}: {}", e.chars().take(300).collect::<String>()),
            None => survivors.push(mutation),
        }
    }
    assert_eq!(survivors, [], "these mistakes pass the suite");
}

/// The full product of options would take hours: each case combines some, so that any two of them meet in some case.
#[test]
fn any_two_options_meet() {
    let backend = Reference::new(None);
    for op in Op::ALL {
        let mut coverage = Coverage::default();
        for (_, suite, dtype) in plan().into_iter().filter(|&(o, suite, _)| o == op && suite == Suite::Values) {
            coverage.merge(&run_one(&backend, op, suite, dtype).coverage);
        }
        assert_eq!(coverage.missing_pairs(op), [""; 0], "{}", op.name());
    }
}
