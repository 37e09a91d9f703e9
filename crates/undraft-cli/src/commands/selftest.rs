//! `undraft selftest`.

use anyhow::Result;
use serde_json::json;
use undraft::cpu::{CpuBackend, Isa, ThreadPool};
use undraft_testing::Report;

#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Name of a back end, and its reports, or why it was skipped.
type Outcome = (String, Result<Vec<Report>, String>);

pub fn run(args: &Args) -> Result<bool> {
    let mut outcomes: Vec<Outcome> = Vec::new();
    if !args.json {
        println!(
            "{:<22} {:<34} {:<10} {:<5} {:>6} {:>10} {:>10}  result",
            "back end", "operation", "suite", "dtype", "cases", "worst", "bound"
        );
    }
    let mut test = |name: String, backend: Result<CpuBackend, String>| {
        let outcome = backend.map(|backend| {
            undraft_testing::conformance::plan()
                .into_iter()
                .map(|(op, suite, dtype)| {
                    let report = undraft_testing::conformance::run_one(&backend, op, suite, dtype);
                    if !args.json {
                        print_row(&name, &report);
                    }
                    report
                })
                .collect()
        });
        if let (Err(reason), false) = (&outcome, args.json) {
            println!("{name:<22} skipped: {reason}");
        }
        outcomes.push((name, outcome));
    };
    for isa in Isa::ALL {
        let reason = "this machine does not have the instruction set".to_string();
        test(format!("cpu-{isa}"), CpuBackend::with_isa(isa).map_err(|_| reason));
    }
    let threads = crate::common::available_threads().max(2);
    let pool = std::sync::Arc::new(ThreadPool::new(threads));
    test(format!("cpu-{}, {threads} threads", Isa::best()), Ok(CpuBackend::new().with_executor(pool)));

    let reports = outcomes.iter().flat_map(|(_, outcome)| outcome.iter().flatten());
    let (mut passed, mut failed) = (0, 0);
    reports.for_each(|report| if report.passed.is_ok() { passed += 1 } else { failed += 1 });
    let skipped = outcomes.iter().filter(|(_, outcome)| outcome.is_err()).count();
    if args.json {
        let backends: Vec<_> = outcomes.iter().map(|(name, outcome)| to_json(name, outcome)).collect();
        let summary =
            json!({ "passed": passed, "failed": failed, "skipped_back_ends": skipped, "back_ends": backends });
        println!("{}", serde_json::to_string_pretty(&summary)?);
    } else {
        println!("\n{passed} passed, {failed} failed; {skipped} back ends skipped");
    }
    Ok(failed == 0)
}

fn print_row(name: &str, report: &Report) {
    let compared = |x: f64| if report.tolerance == 0.0 { "bits".to_string() } else { format!("{x:.1e}") };
    let result = match &report.passed {
        Ok(()) => "ok".to_string(),
        Err(why) => format!("FAILED: {why}"),
    };
    println!(
        "{name:<22} {:<34} {:<10} {:<5} {:>6} {:>10} {:>10}  {result}",
        report.op.name(),
        report.suite.name(),
        report.dtype.name(),
        report.case_count,
        compared(report.worst_rel_rms),
        compared(report.tolerance),
    );
}

fn to_json(name: &str, outcome: &Result<Vec<Report>, String>) -> serde_json::Value {
    match outcome {
        Err(reason) => json!({ "name": name, "skipped": reason }),
        Ok(reports) => {
            let rows = reports.iter().map(|r| {
                json!({
                    "op": r.op.name(), "suite": r.suite.name(), "dtype": r.dtype.name(), "cases": r.case_count,
                    "worst_rel_rms": r.worst_rel_rms, "tolerance": r.tolerance,
                    "passed": r.passed.is_ok(), "failure": r.passed.as_ref().err(),
                })
            });
            json!({ "name": name, "reports": rows.collect::<Vec<_>>() })
        }
    }
}
