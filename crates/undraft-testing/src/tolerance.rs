//! How near to the oracle is near enough: the one table.

use undraft_core::{DType, Op};

/// A bound on a tensor's deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// On RMS(error) / RMS(oracle).
    pub rel_rms: f64,
    /// On the largest |error| / max(|oracle|, RMS(oracle)) of an element.
    pub worst: f64,
}

/// Kinds of tensors that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tensor {
    /// An output in the I/O dtype.
    Out,
    /// A state, captured or final, a log entry, a gate: f32 until it is stored.
    State,
}

/// The bound for a tensor of an operation.
///
/// With `io_rounding` the operation rounds q, k and beta to the I/O dtype; there a last bit in f32 can decide which way a
/// value rounds, and a few elements come out one step away.
pub fn tolerance(op: Op, tensor: Tensor, io: DType, io_rounding: bool) -> Tolerance {
    let in_f32 = match op {
        Op::FusedGdnGating => 2e-7,
        Op::CommitStates => 3e-7,
        Op::CausalConv1dUpdate | Op::CausalConv1dFn | Op::RmsNormGated => 1e-6,
        Op::FusedRecurrentGatedDeltaRule => 2e-6,
        Op::ChunkGatedDeltaRule => 3e-6,
    };
    // Half a step of the dtype is at most 2^-11 or 2^-8 of an element, and more where f16 grows coarse near zero.
    let rounded_output = match (tensor, io) {
        (Tensor::State, _) | (_, DType::F32) => 0.0,
        (Tensor::Out, DType::F16) => 6e-4,
        (Tensor::Out, DType::Bf16) => 4.5e-3,
    };
    let rounded_inside = match (io_rounding, io) {
        (false, _) | (_, DType::F32) => 0.0,
        (true, DType::F16) => 6e-5,
        (true, DType::Bf16) => 5e-4,
    };
    let rel_rms = f64::max(in_f32, f64::max(rounded_output, rounded_inside));
    // Rounding the output bounds each element alike; other errors are sums, with a tail.
    let tail = if rel_rms == rounded_output { 1.5 } else { 20.0 };
    Tolerance { rel_rms, worst: tail * rel_rms }
}

impl Tolerance {
    /// The bound where nothing decays and each of `num_tokens` tokens reflects the state at the same key (beta 2).
    ///
    /// A step multiplies the state along the key by `1 - 2 k . k`, and `k . k` is off by up to half a unit of f32, 2^-24, and
    /// always to the same side: after n steps by `2 n 2^-24`. Nothing damps it, whatever the order of operations.
    pub fn with_reflections(self, num_tokens: usize) -> Self {
        let grown = 2.0 * num_tokens as f64 / f64::from(1 << 24);
        Self { rel_rms: self.rel_rms.max(grown), worst: self.worst.max(20.0 * grown) }
    }

    /// The bound for a tensor of `len` elements where states of this dtype are rounded after every token.
    ///
    /// The oracle rounds its state as well. Where the exact number lies nearer to a tie than the f32 error of about 1e-6, the
    /// two go different ways and end one step apart: 2^-7 of an element (bf16) or 2^-10 (f16), for one element in 8,000 or
    /// 1,000 a token, and more where a state is a difference of larger numbers. One in fifty may differ, and sixteen more
    /// whatever the size; an element may have met two such ties. A state that is not rounded, or rounded otherwise, has
    /// an RMS error of 0.2 to 0.5 steps, and these bounds are 0.14 for large tensors.
    pub fn with_state(self, state: DType, len: usize) -> Self {
        let step = match state {
            DType::F32 => return self,
            DType::F16 => 1.0 / 1024.0,
            DType::Bf16 => 1.0 / 128.0,
        };
        let apart = (1.0f64 / 50.0 + 16.0 / len.max(1) as f64).min(1.0);
        Self { rel_rms: self.rel_rms.max(step * apart.sqrt()), worst: self.worst.max(2.0 * step) }
    }
}

/// The bound on a layer's intermediates against golden vectors, f32 throughout.
pub const GOLDEN: Tolerance = Tolerance { rel_rms: 1e-6, worst: 2e-5 };
