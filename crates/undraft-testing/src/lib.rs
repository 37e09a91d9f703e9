//! What proves a back end right: an f64 oracle, ugly cases, tolerances and a conformance suite.
//!
//! * [`oracle`]: every operation as one plain f64 loop per index; it shares no code with kernels.
//! * [`cases`]: seeded inputs, already rounded to the I/O dtype, so that the oracle sees what a kernel sees.
//! * [`harness`]: runs a case on a [`undraft_core::Backend`] in poisoned, guarded, strided memory.
//! * [`mod@conformance`]: values against the oracle, exactness bit for bit, golden vectors; stamped by the macro
//!   [`conformance!`](macro@conformance).
//! * [`coverage`]: which options the calls of the suite had.
//! * [`golden`]: reader of `testdata/golden`.
//! * [`tolerance`], [`compare`]: one table of bounds, and reports that say where the worst element is.
#![forbid(unsafe_code)]

mod absent;
pub mod cases;
pub mod compare;
pub mod conformance;
pub mod coverage;
pub mod golden;
pub mod harness;
pub mod oracle;
mod rng;
pub mod tolerance;

pub use absent::skip_absent;
pub use conformance::{Report, Suite, run_all};
pub use rng::Rng;
pub use undraft_core::{DType, Op};
