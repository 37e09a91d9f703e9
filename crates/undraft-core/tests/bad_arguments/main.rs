//! Every check of every argument struct: one bad input, the exact sentence, and no buffer touched.

mod delta_rule;

use undraft_core::ops::{
    CausalConv1dFnArgs, CausalConv1dUpdateArgs, ConvLogMut, FusedGdnGatingArgs, GateActivation, RmsNormGatedArgs,
};
use undraft_core::{
    Activation, Caps, Capture, ConvDims, CuSeqlens, DType, DecayShape, Error, GdnDims, Op, Rows, RowsMut, StateIndices,
    Support, conv_state_to_channel_major, conv_state_to_time_major, conv_weight_to_tap_major, state_to_key_major,
    state_to_value_major,
};

/// A change to good arguments, and what the check says to it.
type Table<T> = [(fn(&mut T), &'static str)];

/// Runs a table. `check` gives the error, and whether it left the buffers' bits alone.
fn run<T: Clone + PartialEq + std::fmt::Debug>(good: &T, check: fn(&mut T) -> Result<(), Error>, table: &Table<T>) {
    let mut args = good.clone();
    assert_eq!(check(&mut args), Ok(()), "the arguments are good before the change");
    for (change, expected) in table {
        let mut args = good.clone();
        change(&mut args);
        let before = args.clone();
        let error = check(&mut args).expect_err(expected);
        assert_eq!(error.to_string(), *expected);
        assert_eq!(args, before, "{expected}");
    }
}

/// Elements and stride of a matrix.
#[derive(Clone, Debug, PartialEq)]
struct Matrix {
    data: Vec<f32>,
    stride: usize,
}

impl Matrix {
    fn new(rows: usize, len: usize) -> Self {
        Self { data: vec![0.5; rows * len], stride: len }
    }
    fn rows(&self) -> Rows<'_> {
        Rows::new(&self.data[..], self.stride)
    }
    fn rows_mut(&mut self) -> RowsMut<'_> {
        RowsMut::new(&mut self.data[..], self.stride)
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Gating {
    num_tokens: usize,
    num_v_heads: usize,
    decay_dim: usize,
    a: Matrix,
    b: Matrix,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    g: Vec<f32>,
    beta: Vec<f32>,
}

#[test]
fn fused_gdn_gating() {
    let good = Gating {
        num_tokens: 3,
        num_v_heads: 4,
        decay_dim: 1,
        a: Matrix::new(3, 4),
        b: Matrix::new(3, 4),
        a_log: vec![0.0; 4],
        dt_bias: vec![0.0; 4],
        g: vec![0.0; 12],
        beta: vec![0.0; 12],
    };
    let check = |args: &mut Gating| {
        FusedGdnGatingArgs {
            num_tokens: args.num_tokens,
            num_v_heads: args.num_v_heads,
            decay_dim: args.decay_dim,
            a: args.a.rows(),
            b: args.b.rows(),
            a_log: &args.a_log,
            dt_bias: &args.dt_bias,
            g: &mut args.g,
            beta: &mut args.beta,
        }
        .check()
        .map(drop)
    };
    let table: &Table<Gating> = &[
        (|x| x.a.stride = 3, "`a` has row stride 3, expected at least the row length 4"),
        (|x| x.a.data.truncate(11), "`a` has 11 elements, expected at least 12 for 3 rows of 4 at stride 4"),
        (|x| x.a.stride = 5, "`a` has 12 elements, expected at least 14 for 3 rows of 4 at stride 5"),
        (|x| x.b.stride = 0, "`b` has row stride 0, expected at least the row length 4"),
        (|x| x.b.data.clear(), "`b` has 0 elements, expected at least 12 for 3 rows of 4 at stride 4"),
        (|x| x.a_log.push(0.0), "`A_log` has 5 elements, expected 4 = [num_v_heads=4]"),
        (|x| x.dt_bias.truncate(3), "`dt_bias` has 3 elements, expected 4 = [num_v_heads=4]"),
        (|x| x.g.truncate(11), "`g` has 11 elements, expected 12 = [num_tokens=3, num_v_heads=4]"),
        (|x| x.beta.push(0.0), "`beta` has 13 elements, expected 12 = [num_tokens=3, num_v_heads=4]"),
        (|x| x.num_tokens = 2, "`g` has 12 elements, expected 8 = [num_tokens=2, num_v_heads=4]"),
        (
            |x| x.num_tokens = usize::MAX,
            "`a` has 12 elements, expected at least 18446744073709551615 for 18446744073709551615 rows of 4 at stride 4",
        ),
        (|x| x.decay_dim = 0, "`decay_dim` is 0, expected 1..=256"),
        (|x| x.decay_dim = 257, "`decay_dim` is 257, expected 1..=256"),
        (|x| x.decay_dim = 2, "`a` has row stride 4, expected at least the row length 8"),
        (
            |x| (x.decay_dim, x.a) = (2, Matrix::new(3, 8)),
            "`dt_bias` has 4 elements, expected 8 = [num_v_heads=4, decay_dim=2]",
        ),
        (
            |x| (x.decay_dim, x.a, x.dt_bias) = (2, Matrix::new(3, 8), vec![0.0; 8]),
            "`g` has 12 elements, expected 24 = [num_tokens=3, num_v_heads=4, decay_dim=2]",
        ),
        (
            |x| {
                (x.decay_dim, x.a, x.dt_bias) = (2, Matrix::new(3, 8), vec![0.0; 8]);
                (x.g, x.beta) = (vec![0.0; 24], vec![0.0; 24]);
            },
            "`beta` has 24 elements, expected 12 = [num_tokens=3, num_v_heads=4]",
        ),
        (
            |x| (x.num_v_heads, x.decay_dim) = (usize::MAX, 256),
            "`a` needs [num_v_heads=18446744073709551615, decay_dim=256] elements in total, which overflows",
        ),
    ];
    run(&good, check, table);
    let channels = Gating { decay_dim: 2, a: Matrix::new(3, 8), dt_bias: vec![0.0; 8], g: vec![0.0; 24], ..good };
    run(&channels, check, &[]);
}

#[derive(Clone, Debug, PartialEq)]
struct Conv {
    x: Matrix,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    cu_seqlens: Vec<i32>,
    state_indices: Vec<i32>,
    num_slots: usize,
    state: Vec<f32>,
    log: Option<Vec<f32>>,
    max_tokens: usize,
    num_pending: Vec<u32>,
    pending_path: Vec<u32>,
    parents: Vec<i32>,
    capture: Capture,
    out: Matrix,
}

/// C = 2, W = 3, sequences of 2 and 1 tokens in slots 2 and 0 of 3, logs of 4 tokens.
fn conv() -> Conv {
    Conv {
        x: Matrix::new(3, 2),
        weight: vec![0.0; 6],
        bias: Some(vec![0.0; 2]),
        cu_seqlens: vec![0, 2, 3],
        state_indices: vec![2, 0],
        num_slots: 3,
        state: vec![0.0; 12],
        log: Some(vec![0.0; 24]),
        max_tokens: 4,
        num_pending: vec![4, 0],
        pending_path: vec![],
        parents: vec![],
        capture: Capture::DeltaLog,
        out: Matrix::new(3, 2),
    }
}

/// What the convolution of windows and that of prompts check alike.
const CONV: &Table<Conv> = &[
    (
        |x| x.cu_seqlens.clear(),
        "`cu_seqlens` is missing, expected it because it needs num_seqs + 1 entries, at least one",
    ),
    (|x| x.cu_seqlens[0] = 1, "`cu_seqlens`[0] is 1, expected 0"),
    (|x| x.cu_seqlens[2] = 1, "`cu_seqlens`[2] is 1, expected at least the entry before it"),
    (|x| x.cu_seqlens[1] = -1, "`cu_seqlens`[1] is -1, expected at least the entry before it"),
    (
        |x| x.cu_seqlens[2] = i32::MAX,
        "`x` has 6 elements, expected at least 4294967294 for 2147483647 rows of 2 at stride 2",
    ),
    (|x| x.state_indices.truncate(1), "`state_indices` has 1 elements, expected 2 = [num_seqs=2]"),
    (|x| x.state_indices[1] = 3, "`state_indices`[1] is 3, expected -1 (padding) or 0..3"),
    (|x| x.state_indices[0] = -2, "`state_indices`[0] is -2, expected -1 (padding) or 0..3"),
    (|x| x.state_indices[1] = 2, "`state_indices`[1] is slot 2 again, first at [0]: a slot may stand once in a call"),
    (|x| x.x.stride = 1, "`x` has row stride 1, expected at least the row length 2"),
    (|x| x.x.data.truncate(5), "`x` has 5 elements, expected at least 6 for 3 rows of 2 at stride 2"),
    (|x| x.out.stride = 1, "`out` has row stride 1, expected at least the row length 2"),
    (|x| x.out.stride = 3, "`out` has 6 elements, expected at least 8 for 3 rows of 2 at stride 3"),
    (|x| x.weight.truncate(5), "`weight` has 5 elements, expected 6 = [conv_width=3, channels=2]"),
    (|x| x.bias = Some(vec![0.0; 3]), "`bias` has 3 elements, expected 2 = [channels=2]"),
    (|x| x.state.push(0.0), "`state` has 13 elements, expected 12 = [num_slots=3, conv_width - 1=2, channels=2]"),
];

#[test]
fn causal_conv1d_update() {
    let good = conv();
    let check = |args: &mut Conv| {
        CausalConv1dUpdateArgs {
            dims: ConvDims::new(2, 3)?,
            x: args.x.rows(),
            weight: &args.weight,
            bias: args.bias.as_deref(),
            activation: Activation::Silu,
            cu_seqlens: &args.cu_seqlens,
            state_indices: &args.state_indices,
            num_slots: args.num_slots,
            state: &mut args.state,
            log: args.log.as_mut().map(|x| ConvLogMut { x, max_tokens: args.max_tokens }),
            num_pending: &args.num_pending,
            pending_path: &args.pending_path,
            parents: &args.parents,
            capture: args.capture,
            out: args.out.rows_mut(),
        }
        .check()
        .map(drop)
    };
    run(&good, check, CONV);
    let table: &Table<Conv> = &[
        (
            |x| x.log = Some(vec![0.0; 23]),
            "`log.x` has 23 elements, expected 24 = [num_slots=3, max_tokens=4, channels=2]",
        ),
        (
            |x| x.max_tokens = usize::MAX / 2,
            "`log.x` needs [num_slots=3, max_tokens=9223372036854775807, channels=2] elements in total, which overflows",
        ),
        (|x| x.num_pending.truncate(1), "`num_pending` has 1 elements, expected 2 = [num_seqs=2]"),
        (|x| x.num_pending[0] = 5, "`num_pending`[0] is 5 tokens, expected at most `max_tokens` = 4"),
        (|x| x.log = None, "`log` is missing, expected it because the capture is `DeltaLog`"),
        (
            |x| (x.log, x.capture) = (None, Capture::Final),
            "`log` is missing, expected it because `num_pending` is not zero",
        ),
        (
            |x| (x.log, x.max_tokens, x.num_pending) = (Some(vec![0.0; 6]), 1, vec![]),
            "`windows`[0] is 2 tokens, expected at most `max_tokens` = 1",
        ),
        (
            |x| x.capture = Capture::PerToken,
            "back end `any` does not support capture `PerToken` of a convolution: use `DeltaLog`, the window's inputs are \
             all that is needed",
        ),
        (|x| x.parents = vec![-1; 4], "`parents` has 4 elements, expected 3 = [num_tokens=3]"),
        (
            |x| x.parents = vec![-1, 0, 0],
            "`parents`[2] is 0, expected -1 (the committed state) or 0..0: parents come first",
        ),
        (
            |x| (x.capture, x.parents) = (Capture::Final, vec![-1, -1, -1]),
            "back end `any` does not support a draft tree with capture `Final`: use `DeltaLog`, which keeps the state until a \
             path is chosen",
        ),
        (|x| x.pending_path = vec![0; 9], "`pending_path` has 9 elements, expected 8 = [num_seqs=2, max_tokens=4]"),
        (
            |x| x.pending_path = vec![0, 2, 1, 3, 0, 0, 0, 0],
            "`pending_path`[0][2] is log entry 1, expected 3..4: a path rises",
        ),
        (
            |x| x.pending_path = vec![1, 2, 3, 4, 0, 0, 0, 0],
            "`pending_path`[0][3] is log entry 4, expected 4..4: a path rises",
        ),
    ];
    run(&good, check, table);
    let tree = Conv { parents: vec![-1, -1, -1], pending_path: vec![0, 1, 2, 3, 9, 9, 9, 9], ..good.clone() };
    run(&tree, check, &[]);
    run(&Conv { parents: vec![-1, 0, -1], capture: Capture::Final, ..tree }, check, &[]);
    // Padding needs no room and may say anything; without a log `Final` runs.
    let padded = Conv { state_indices: vec![-1, -1], num_pending: vec![u32::MAX, 9], ..good.clone() };
    let tight = Conv { max_tokens: 1, log: Some(vec![0.0; 6]), ..padded };
    let without_log = Conv { log: None, num_pending: vec![0, 0], capture: Capture::Final, ..good };
    run(&tight, check, &[]);
    run(&without_log, check, &[]);
}

#[test]
fn causal_conv1d_fn() {
    let check = |args: &mut Conv| {
        CausalConv1dFnArgs {
            dims: ConvDims::new(2, 3)?,
            x: args.x.rows(),
            weight: &args.weight,
            bias: args.bias.as_deref(),
            activation: Activation::Silu,
            cu_seqlens: &args.cu_seqlens,
            state_indices: &args.state_indices,
            num_slots: args.num_slots,
            state: &mut args.state,
            out: args.out.rows_mut(),
        }
        .check()
        .map(drop)
    };
    run(&conv(), check, CONV);
}

#[derive(Clone, Debug, PartialEq)]
struct Norm {
    num_heads: usize,
    head_dim: usize,
    x: Matrix,
    z: Matrix,
    weight: Vec<f32>,
    eps: f32,
    out: Matrix,
}

#[test]
fn rms_norm_gated() {
    let good = Norm {
        num_heads: 2,
        head_dim: 3,
        x: Matrix::new(2, 6),
        z: Matrix::new(2, 6),
        weight: vec![0.0; 3],
        eps: 0.0,
        out: Matrix::new(2, 6),
    };
    let check = |args: &mut Norm| {
        RmsNormGatedArgs {
            num_rows: 2,
            num_heads: args.num_heads,
            head_dim: args.head_dim,
            x: args.x.rows(),
            z: args.z.rows(),
            weight: &args.weight,
            eps: args.eps,
            activation: GateActivation::Silu,
            out: args.out.rows_mut(),
        }
        .check()
        .map(drop)
    };
    let table: &Table<Norm> = &[
        (|x| x.num_heads = 0, "`num_heads` is 0, expected 1..=65536"),
        (|x| x.num_heads = usize::MAX, "`num_heads` is 9223372036854775807, expected 1..=65536"),
        (|x| x.head_dim = 0, "`head_dim` is 0, expected 1..=65536"),
        (|x| x.head_dim = 65537, "`head_dim` is 65537, expected 1..=65536"),
        (|x| x.x.stride = 5, "`x` has row stride 5, expected at least the row length 6"),
        (|x| x.x.data.truncate(11), "`x` has 11 elements, expected at least 12 for 2 rows of 6 at stride 6"),
        (|x| x.z.stride = 5, "`z` has row stride 5, expected at least the row length 6"),
        (|x| x.z.data.truncate(0), "`z` has 0 elements, expected at least 12 for 2 rows of 6 at stride 6"),
        (|x| x.out.stride = 5, "`out` has row stride 5, expected at least the row length 6"),
        (|x| x.out.data.truncate(11), "`out` has 11 elements, expected at least 12 for 2 rows of 6 at stride 6"),
        (|x| x.weight.push(0.0), "`weight` has 4 elements, expected 3 = [head_dim=3]"),
        (|x| x.eps = -1.0, "`eps` is -1, expected a finite number, at least 0"),
        (|x| x.eps = f32::INFINITY, "`eps` is inf, expected a finite number, at least 0"),
    ];
    run(&good, check, table);
}

fn sentence<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.expect_err("the input is bad").to_string()
}

#[test]
fn sizes() {
    let gdn = |h, hv, k, v| sentence(GdnDims::new(h, hv, k, v));
    assert_eq!(gdn(0, 1, 1, 1), "`num_k_heads` is 0, expected 1..=65536");
    assert_eq!(gdn(1, 65537, 1, 1), "`num_v_heads` is 65537, expected 1..=65536");
    assert_eq!(gdn(1, 1, 257, 1), "`head_k_dim` is 257, expected 1..=256");
    assert_eq!(gdn(1, 1, 1, 0), "`head_v_dim` is 0, expected 1..=256");
    assert_eq!(gdn(4, 6, 1, 1), "`num_v_heads` is 6, expected a multiple of `num_k_heads` = 4");
    assert_eq!(gdn(4, 2, 1, 1), "`num_v_heads` is 2, expected a multiple of `num_k_heads` = 4");
    assert_eq!(sentence(ConvDims::new(0, 4)), "`channels` is 0, expected 1..=50331648");
    assert_eq!(sentence(ConvDims::new(1, 1)), "`conv_width` is 1, expected 2..=8");
    assert_eq!(sentence(ConvDims::new(1, 9)), "`conv_width` is 9, expected 2..=8");
}

#[test]
fn sequences_and_slots() {
    assert_eq!(sentence(CuSeqlens::new(&[0, 5, 4])), "`cu_seqlens`[2] is 4, expected at least the entry before it");
    assert_eq!(sentence(StateIndices::new(&[0], 2, 1)), "`state_indices` has 1 elements, expected 2 = [num_seqs=2]");
    assert_eq!(sentence(StateIndices::new(&[0], 1, 0)), "`state_indices`[0] is 0, expected -1 (padding) or 0..0");
    // Long lists are sorted instead of compared pairwise; the answer is the same.
    for len in [2usize, 64, 65, 200] {
        let mut indices: Vec<i32> = (0..len as i32).rev().collect();
        assert!(StateIndices::new(&indices, len, len).is_ok());
        indices[len - 1] = indices[0];
        assert_eq!(
            sentence(StateIndices::new(&indices, len, len)),
            format!(
                "`state_indices`[{}] is slot {} again, first at [0]: a slot may stand once in a call",
                len - 1,
                len - 1
            )
        );
        assert!(StateIndices::new(&vec![-1; len], len, 1).is_ok(), "padding may stand many times");
    }
}

#[test]
fn layouts() {
    let dims = GdnDims::new(1, 2, 3, 4).expect("good sizes");
    let conv = ConvDims::new(5, 3).expect("good sizes");
    let (state, mut out) = (vec![1.0; 24], vec![7.0; 24]);
    let lengths: [(String, &str); 6] = [
        (
            sentence(state_to_value_major(&dims, &state[1..], &mut out)),
            "`key_major` has 23 elements, expected 24 = [num_v_heads=2, head_v_dim=4, head_k_dim=3]",
        ),
        (
            sentence(state_to_key_major(&dims, &state, &mut out[1..])),
            "`key_major` has 23 elements, expected 24 = [num_v_heads=2, head_v_dim=4, head_k_dim=3]",
        ),
        (
            sentence(conv_weight_to_tap_major(&conv, &state[..14], &mut out[..15])),
            "`channel_major` has 14 elements, expected 15 = [channels=5, conv_width=3]",
        ),
        (
            sentence(conv_weight_to_tap_major(&conv, &state[..15], &mut out[..16])),
            "`tap_major` has 16 elements, expected 15 = [channels=5, conv_width=3]",
        ),
        (
            sentence(conv_state_to_time_major(&conv, &state[..9], &mut out[..10])),
            "`channel_major` has 9 elements, expected 10 = [conv_width - 1=2, channels=5]",
        ),
        (
            sentence(conv_state_to_channel_major(&conv, &state[..10], &mut out[..9])),
            "`channel_major` has 9 elements, expected 10 = [conv_width - 1=2, channels=5]",
        ),
    ];
    for (got, expected) in &lengths {
        assert_eq!(got, expected);
    }
    assert_eq!(out, [7.0; 24], "a failed conversion writes nothing");
}

#[test]
fn support() {
    let caps = Caps {
        backend: "test",
        ops: &[Op::CommitStates, Op::FusedRecurrentGatedDeltaRule],
        io: &[DType::F32],
        captures: &[Capture::DeltaLog],
        max_head_dim: 128,
        states: &[DType::F32],
        decay_shapes: &[DecayShape::PerHead],
        trees: false,
        keeps_subnormals: true,
    };
    let good = Support::new(Op::CommitStates, 128, 1);
    assert_eq!(caps.supports(&good), Ok(()));
    let no = |what| sentence(caps.supports(&what));
    assert_eq!(
        no(Support { op: Op::RmsNormGated, ..good }),
        "back end `test` does not support `rms_norm_gated`: run this operation on the cpu back end"
    );
    assert_eq!(
        no(Support { io: DType::Bf16, ..good }),
        "back end `test` does not support `commit_states` with bf16 tensors: convert them to f32"
    );
    assert_eq!(
        no(Support { capture: Capture::PerToken, ..good }),
        "back end `test` does not support capture `PerToken`: use capture `DeltaLog`"
    );
    assert_eq!(
        no(Support { state: DType::F16, ..good }),
        "back end `test` does not support f16 states: use f32 states"
    );
    assert_eq!(
        no(Support { decay_shape: DecayShape::PerChannel, ..good }),
        "back end `test` does not support decay shape `PerChannel`: use one decay factor a head"
    );
    assert_eq!(
        no(Support { op: Op::FusedRecurrentGatedDeltaRule, tree: true, ..good }),
        "back end `test` does not support draft trees: verify each path as a chain"
    );
    assert_eq!(caps.supports(&Support { tree: true, ..good }), Ok(()), "a replay has no windows");
    let sizes = "head sizes reach from 1 to the back end's largest";
    assert_eq!(
        no(Support { head_k_dim: 129, ..good }),
        format!("back end `test` does not support head_k_dim 129: {sizes}")
    );
    assert_eq!(
        no(Support { head_v_dim: 0, ..good }),
        format!("back end `test` does not support head_v_dim 0: {sizes}")
    );
}
