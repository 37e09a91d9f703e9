//! The suite that every back end passes, stamped by [`crate::conformance!`](macro@crate::conformance) or called as a library.

mod causal_conv1d_fn;
mod causal_conv1d_update;
mod chunk_gated_delta_rule;
mod commit_states;
mod fused_gdn_gating;
mod fused_recurrent_gated_delta_rule;
mod golden;
mod rms_norm_gated;
mod stamp;

pub use stamp::assert_conforms;

use undraft_core::{Backend, DType, Op};

use crate::compare::Deviation;
use crate::coverage::{Coverage, Options};
use crate::tolerance::Tolerance;

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// Values against the oracle, in hostile memory.
    Values,
    /// What must hold bit for bit.
    Exactness,
    /// Values of public implementations.
    Golden,
}

impl Suite {
    /// `values`, `exactness` or `golden`.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Values => "values",
            Suite::Exactness => "exactness",
            Suite::Golden => "golden",
        }
    }
}

/// Outcome of one suite of one operation in one dtype.
#[derive(Clone, Debug)]
pub struct Report {
    /// Operation.
    pub op: Op,
    /// What was checked.
    pub suite: Suite,
    /// I/O dtype.
    pub dtype: DType,
    /// Cases that ran.
    pub case_count: usize,
    /// Cases that the back end refused, as it had declared.
    pub refused_count: usize,
    /// RMS(error) / RMS(oracle) of the tensor that came nearest to its bound; 0 where bits are compared.
    pub worst_rel_rms: f64,
    /// The bound of that tensor.
    pub tolerance: f64,
    /// Options of the calls that passed.
    pub coverage: Coverage,
    /// The first failure, with the case that shows it.
    pub passed: Result<(), String>,
}

impl std::fmt::Display for Report {
    /// One line: what ran, how near it came, and the first failure.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { op, suite, dtype, case_count, refused_count, worst_rel_rms, tolerance, passed, .. } = self;
        write!(f, "{:32} {:9} {:4} {case_count:4} cases", op.name(), suite.name(), dtype.name())?;
        if *refused_count > 0 {
            write!(f, ", {refused_count} refused as declared")?;
        }
        if *tolerance > 0.0 {
            write!(f, ", error {worst_rel_rms:.1e} of {tolerance:.1e}")?;
        }
        match passed {
            Ok(()) => f.write_str(", passed"),
            Err(e) => write!(f, ", FAILED: {e}"),
        }
    }
}

/// Counts and worst deviation of a suite.
#[derive(Default)]
pub(crate) struct Tally {
    case_count: usize,
    refused_count: usize,
    worst_rel_rms: f64,
    tolerance: f64,
    coverage: Coverage,
    /// Largest fraction of a bound since the last call.
    worst_of_call: f64,
}

impl Tally {
    fn case(&mut self, ran: bool) {
        if ran {
            self.case_count += 1;
        } else {
            self.refused_count += 1;
        }
    }
    fn deviation(&mut self, deviation: Deviation, bound: Tolerance) {
        self.near(deviation.rel_rms, bound.rel_rms);
    }
    /// A call whose results passed, after its deviations.
    fn call(&mut self, options: Options) {
        self.coverage.record(options, std::mem::take(&mut self.worst_of_call));
    }
    fn near(&mut self, rel_rms: f64, bound: f64) {
        self.worst_of_call = self.worst_of_call.max(rel_rms / bound);
        if self.tolerance == 0.0 || rel_rms / bound > self.worst_rel_rms / self.tolerance {
            (self.worst_rel_rms, self.tolerance) = (rel_rms, bound);
        }
    }
}

/// Everything that [`run_all`] runs, in its order.
pub fn plan() -> Vec<(Op, Suite, DType)> {
    let mut plan = Vec::new();
    for op in Op::ALL {
        for suite in [Suite::Values, Suite::Exactness, Suite::Golden] {
            // States and logs are f32, and so are the golden vectors' inputs.
            let one_dtype = op == Op::CommitStates || suite == Suite::Golden;
            let dtypes: &[DType] = if one_dtype { &[DType::F32] } else { &[DType::F32, DType::Bf16, DType::F16] };
            plan.extend(dtypes.iter().map(|&dtype| (op, suite, dtype)));
        }
    }
    plan
}

/// Runs one entry of the [`plan`].
pub fn run_one(backend: &dyn Backend, op: Op, suite: Suite, dtype: DType) -> Report {
    let mut tally = Tally::default();
    let t = &mut tally;
    let passed = match (suite, op) {
        (Suite::Golden, _) => golden::run(backend, op, t),
        (Suite::Values, Op::FusedGdnGating) => fused_gdn_gating::values(backend, dtype, t),
        (Suite::Values, Op::CausalConv1dUpdate) => causal_conv1d_update::values(backend, dtype, t),
        (Suite::Values, Op::CausalConv1dFn) => causal_conv1d_fn::values(backend, dtype, t),
        (Suite::Values, Op::FusedRecurrentGatedDeltaRule) => {
            fused_recurrent_gated_delta_rule::values(backend, dtype, t)
        }
        (Suite::Values, Op::ChunkGatedDeltaRule) => chunk_gated_delta_rule::values(backend, dtype, t),
        (Suite::Values, Op::CommitStates) => commit_states::values(backend, t),
        (Suite::Values, Op::RmsNormGated) => rms_norm_gated::values(backend, dtype, t),
        (Suite::Exactness, Op::FusedGdnGating) => fused_gdn_gating::exactness(backend, dtype, t),
        (Suite::Exactness, Op::CausalConv1dUpdate) => causal_conv1d_update::exactness(backend, dtype, t),
        (Suite::Exactness, Op::CausalConv1dFn) => causal_conv1d_fn::exactness(backend, dtype, t),
        (Suite::Exactness, Op::FusedRecurrentGatedDeltaRule) => {
            fused_recurrent_gated_delta_rule::exactness(backend, dtype, t)
        }
        (Suite::Exactness, Op::ChunkGatedDeltaRule) => chunk_gated_delta_rule::exactness(backend, dtype, t),
        (Suite::Exactness, Op::CommitStates) => commit_states::exactness(backend, t),
        (Suite::Exactness, Op::RmsNormGated) => rms_norm_gated::exactness(backend, dtype, t),
    };
    let Tally { case_count, refused_count, worst_rel_rms, tolerance, coverage, .. } = tally;
    Report { op, suite, dtype, case_count, refused_count, worst_rel_rms, tolerance, coverage, passed }
}

/// Runs the whole suite.
pub fn run_all(backend: &dyn Backend) -> Vec<Report> {
    plan().into_iter().map(|(op, suite, dtype)| run_one(backend, op, suite, dtype)).collect()
}
