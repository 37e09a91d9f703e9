//! `undraft selftest`.

use anyhow::Result;
use serde_json::json;
use undraft::cpu::{CpuBackend, Isa, ThreadPool};
use undraft::{Backend, Device};
use undraft_testing::conformance::{plan, run_one};
use undraft_testing::coverage::{Axis, Coverage};
use undraft_testing::{Op, Report, Suite};

use crate::common::{DeviceArg, cuda_devices, wgpu_devices, wgpu_facts};

#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Print what docs/conformance.md holds.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Check one device alone: `cpu`, `cuda`, `cuda:N`, `metal`, `wgpu` or `wgpu:N`; all that are there by default.
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceArg>,
}

/// Name of a back end, and its reports, or why it was skipped.
type Outcome = (String, Result<Vec<Report>, String>);

pub fn run(args: &Args) -> Result<bool> {
    let as_text = !args.json && !args.markdown;
    if as_text {
        print_head();
    }
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut test = |name: String, backend: Result<&dyn Backend, String>| {
        let outcome = backend.map(|backend| {
            let mut reports = Vec::new();
            for op in Op::ALL {
                let own: Vec<Report> = plan()
                    .into_iter()
                    .filter(|&(planned, ..)| planned == op)
                    .map(|(op, suite, dtype)| run_one(backend, op, suite, dtype))
                    .collect();
                if as_text {
                    print_row(&name, op, &own);
                }
                reports.extend(own);
            }
            reports
        });
        if let (Err(reason), true) = (&outcome, as_text) {
            outln!("{name:<18} skipped: {reason}");
        }
        outcomes.push((name, outcome));
    };
    if matches!(args.device, None | Some(DeviceArg::Cpu)) {
        for isa in Isa::ALL {
            let backend = CpuBackend::with_isa(isa);
            let reason = "this machine does not have the instruction set".to_string();
            test(format!("cpu-{isa}"), backend.as_ref().map(|b| b as &dyn Backend).map_err(|_| reason));
        }
        let threads = crate::common::available_threads().max(2);
        let pool = std::sync::Arc::new(ThreadPool::new(threads));
        let name = format!("cpu-{}, threads", Isa::best());
        test(name, Ok(&CpuBackend::new().with_executor(pool)));
    }
    match args.device {
        Some(DeviceArg::Cpu) => {}
        Some(DeviceArg::Cuda(ordinal)) => test(format!("cuda:{ordinal}"), Ok(Device::cuda(ordinal)?.backend())),
        Some(DeviceArg::Metal) => test("metal".into(), Ok(Device::metal()?.backend())),
        Some(DeviceArg::Wgpu(ordinal)) => {
            let device = Device::wgpu(ordinal)?;
            if as_text {
                say_facts(&device);
            }
            test(format!("wgpu:{ordinal}"), Ok(device.backend()));
        }
        None => {
            for (ordinal, device) in cuda_devices().enumerate() {
                let device = device.as_ref().map(Device::backend).map_err(ToString::to_string);
                test(format!("cuda:{ordinal}"), device);
            }
            let device = Device::metal();
            test("metal".into(), device.as_ref().map(Device::backend).map_err(ToString::to_string));
            for (ordinal, device) in wgpu_devices().enumerate() {
                if let (Ok(device), true) = (&device, as_text) {
                    say_facts(device);
                }
                let backend = match &device {
                    Ok(device) if is_cpu(device) => {
                        Err("a CPU that poses as a GPU is slow, `--device` asks for it".into())
                    }
                    device => device.as_ref().map(Device::backend).map_err(ToString::to_string),
                };
                test(format!("wgpu:{ordinal}"), backend);
            }
        }
    }

    let reports = outcomes.iter().flat_map(|(_, outcome)| outcome.iter().flatten());
    let (mut passed, mut failed) = (0, 0);
    reports.for_each(|report| if report.passed.is_ok() { passed += 1 } else { failed += 1 });
    let skipped = outcomes.iter().filter(|(_, outcome)| outcome.is_err()).count();
    let summary = format!("{passed} passed, {failed} failed; {skipped} back ends skipped");
    if args.json {
        let backends: Vec<_> = outcomes.iter().map(|(name, outcome)| to_json(name, outcome)).collect();
        let summary =
            json!({ "passed": passed, "failed": failed, "skipped_back_ends": skipped, "back_ends": backends });
        outln!("{}", serde_json::to_string_pretty(&summary)?);
    } else if args.markdown {
        out!("{}", to_markdown(&outcomes, &summary));
    } else {
        outln!("\n{summary}");
    }
    Ok(failed == 0)
}

/// Whether it is an adapter of wgpu that runs on the CPU.
fn is_cpu(device: &Device) -> bool {
    device.wgpu_backend().is_some_and(|backend| backend.device().adapter().kind == "Cpu")
}

/// What a wgpu adapter's bits depend on.
fn say_facts(device: &Device) {
    if let Some(backend) = device.wgpu_backend() {
        let device = backend.device();
        outln!("wgpu:{}, {}, {}", device.adapter().ordinal, device.adapter().name, wgpu_facts(device));
    }
}

/// What the suites of one operation covered, counted over all of them.
struct Totals {
    coverage: Coverage,
    golden: usize,
    failures: Vec<String>,
}

impl Totals {
    fn new<'a>(reports: impl IntoIterator<Item = &'a Report>) -> Self {
        let mut totals = Self { coverage: Coverage::default(), golden: 0, failures: Vec::new() };
        for report in reports {
            totals.coverage.merge(&report.coverage);
            if report.suite == Suite::Golden {
                totals.golden += report.case_count;
            }
            if let Err(why) = &report.passed {
                totals.failures.push(format!("{} {}: {why}", report.suite.name(), report.dtype.name()));
            }
        }
        totals
    }
    /// Calls by value of an axis, `12/0/3`; `-` where the axis means nothing to the operation.
    fn counts(&self, op: Op, axis: Axis) -> String {
        match axis.values(op) {
            [] => "-".to_string(),
            values => values.iter().map(|v| self.coverage.calls(axis, v).to_string()).collect::<Vec<_>>().join("/"),
        }
    }
    /// Largest deviation as a fraction of its bound; `bits` where all were compared bit by bit.
    fn worst(&self) -> String {
        match self.coverage.total().worst {
            0.0 => "bits".to_string(),
            worst => format!("{worst:.2}"),
        }
    }
    fn result(&self) -> &'static str {
        if self.failures.is_empty() { "ok" } else { "FAILED" }
    }
}

/// Width of an axis' column.
fn width(axis: Axis) -> usize {
    match axis {
        Axis::Memory => 19,
        Axis::Decay => 17,
        Axis::Io | Axis::State | Axis::Capture | Axis::Windows | Axis::Replay => 14,
        Axis::HeadMap | Axis::DecayShape => 11,
    }
}

fn print_head() {
    outln!("Calls that passed, by option; 0 is an option that no call had, - one that the operation does not have.");
    for axis in Axis::ALL {
        let values = Op::ALL.into_iter().map(|op| axis.values(op)).max_by_key(|values| values.len());
        outln!("  {:<12} {}", axis.name(), values.unwrap_or_default().join("/"));
    }
    outln!("  causal_conv1d_update has no per-token, and commit_states no `replay none`.");
    out!("\n{:<18} {:<32} {:>6} {:>6} {:>6} ", "back end", "operation", "calls", "golden", "worst");
    Axis::ALL.iter().for_each(|&axis| out!(" {:<w$}", axis.name(), w = width(axis)));
    outln!(" result");
}

fn print_row(name: &str, op: Op, reports: &[Report]) {
    let totals = Totals::new(reports);
    let (calls, golden, worst) = (totals.coverage.total().calls, totals.golden, totals.worst());
    out!("{name:<18} {:<32} {calls:>6} {golden:>6} {worst:>6} ", op.name());
    Axis::ALL.iter().for_each(|&axis| out!(" {:<w$}", totals.counts(op, axis), w = width(axis)));
    outln!(" {}", totals.result());
    totals.failures.iter().for_each(|why| outln!("    FAILED: {why}"));
}

const MARKDOWN_HEAD: &str = "\
# Conformance

What the conformance suite ran, by option. Written by

    cargo run --release -- selftest --markdown > docs/conformance.md

on the machine at hand; the suite itself is described in [testing.md](testing.md).

A row is an operation on a back end. *Calls* are the calls of the `values` and `exactness` suites that passed, and the columns behind
it count them by option, in the order of the heading: 0 is an option that no call had. *Golden* are the golden vectors that
passed. *Worst* is the largest deviation from the f64 oracle, as a fraction of its bound in
`crates/undraft-testing/src/tolerance.rs`.

The full product of the options is sparse: a case combines some of them. Any two options of an operation meet in some case,
which `any_two_options_meet` in `crates/undraft-testing/tests/reference_backend.rs` checks.
";

fn to_markdown(outcomes: &[Outcome], summary: &str) -> String {
    let mut text = format!("{MARKDOWN_HEAD}\nResult: {summary}.\n");
    let skipped = outcomes.iter().filter_map(|(name, outcome)| Some((name, outcome.as_ref().err()?)));
    skipped.for_each(|(name, reason)| text.push_str(&format!("\nSkipped: `{name}`, {reason}.\n")));
    for op in Op::ALL {
        let axes: Vec<Axis> = Axis::ALL.into_iter().filter(|axis| !axis.values(op).is_empty()).collect();
        text.push_str(&format!("\n## {}\n\n| back end | calls | golden | worst |", op.name()));
        for axis in &axes {
            text.push_str(&format!(" {}: {} |", axis.name(), axis.values(op).join(" / ")));
        }
        text.push_str(&format!(" result |\n|{}\n", " --- |".repeat(axes.len() + 5)));
        for (name, outcome) in outcomes {
            let Ok(reports) = outcome else { continue };
            let totals = Totals::new(reports.iter().filter(|report| report.op == op));
            let (calls, golden, worst) = (totals.coverage.total().calls, totals.golden, totals.worst());
            text.push_str(&format!("| {name} | {calls} | {golden} | {worst} |"));
            for &axis in &axes {
                text.push_str(&format!(" {} |", totals.counts(op, axis).replace('/', " / ")));
            }
            text.push_str(&format!(" {} |\n", totals.result()));
        }
    }
    text
}

fn to_json(name: &str, outcome: &Result<Vec<Report>, String>) -> serde_json::Value {
    match outcome {
        Err(reason) => json!({ "name": name, "skipped": reason }),
        Ok(reports) => {
            let rows = reports.iter().map(|r| {
                let options: serde_json::Map<String, serde_json::Value> = Axis::ALL
                    .into_iter()
                    .filter(|axis| !axis.values(r.op).is_empty())
                    .map(|axis| {
                        let values = axis.values(r.op).iter();
                        let counts = values.map(|&v| (v.to_string(), json!(r.coverage.calls(axis, v))));
                        (axis.name().to_string(), serde_json::Value::Object(counts.collect()))
                    })
                    .collect();
                json!({
                    "op": r.op.name(), "suite": r.suite.name(), "dtype": r.dtype.name(), "cases": r.case_count,
                    "worst_rel_rms": r.worst_rel_rms, "tolerance": r.tolerance,
                    "passed": r.passed.is_ok(), "failure": r.passed.as_ref().err(), "calls_by_option": options,
                })
            });
            json!({ "name": name, "reports": rows.collect::<Vec<_>>() })
        }
    }
}
