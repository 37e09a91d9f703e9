//! The recurrence, the chunked form and the replay.

use undraft_core::ops::{
    CheckpointsMut, ChunkGatedDeltaRuleArgs, CommitStatesArgs, DeltaRuleInputs, FusedRecurrentArgs,
};
use undraft_core::{
    Beta, Capture, CaptureMut, DType, DataMut, Decay, DecayShape, DeltaLogMut, Error, GdnDims, HeadMap, QkNorm,
    Rounding, bf16, f16,
};

use super::{Matrix, Table, run};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Log,
    Linear,
    NegLog,
    Gate,
}

/// States in any dtype.
#[derive(Clone, Debug, PartialEq)]
enum States {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

impl States {
    fn zeros(dtype: DType, len: usize) -> Self {
        match dtype {
            DType::F32 => Self::F32(vec![0.0; len]),
            DType::Bf16 => Self::Bf16(vec![bf16::ZERO; len]),
            DType::F16 => Self::F16(vec![f16::ZERO; len]),
        }
    }
    fn data_mut(&mut self) -> DataMut<'_> {
        match self {
            Self::F32(d) => DataMut::F32(d),
            Self::Bf16(d) => DataMut::Bf16(d),
            Self::F16(d) => DataMut::F16(d),
        }
    }
}

fn f32s(len: usize) -> States {
    States::zeros(DType::F32, len)
}

#[derive(Clone, Debug, PartialEq)]
struct DeltaRule {
    decay_shape: DecayShape,
    q: Matrix,
    k: Matrix,
    v: Matrix,
    form: Form,
    decay: Vec<f32>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    logit: bool,
    beta: Vec<f32>,
    scale: f32,
    qk_norm: QkNorm,
    cu_seqlens: Vec<i32>,
    state_indices: Vec<i32>,
    parents: Vec<i32>,
    num_slots: usize,
    state: States,
    log: Option<[Vec<f32>; 3]>,
    max_tokens: usize,
    num_pending: Vec<u32>,
    pending_path: Vec<u32>,
    capture: Capture,
    captured: States,
    max_captured: usize,
    checkpoints: Option<(States, usize)>,
    out: Matrix,
}

/// H = 1, HV = 2, K = 3, V = 2; sequences of 2 and 1 tokens in slots 2 and 0 of 3, logs of 4 tokens.
fn delta_rule() -> DeltaRule {
    DeltaRule {
        decay_shape: DecayShape::PerHead,
        q: Matrix::new(3, 3),
        k: Matrix::new(3, 3),
        v: Matrix::new(3, 4),
        form: Form::Log,
        decay: vec![0.0; 6],
        a_log: vec![0.0; 2],
        dt_bias: vec![0.0; 2],
        logit: false,
        beta: vec![0.0; 6],
        scale: 1.0,
        qk_norm: QkNorm::L2Norm { eps: 1e-6 },
        cu_seqlens: vec![0, 2, 3],
        state_indices: vec![2, 0],
        parents: vec![],
        num_slots: 3,
        state: f32s(36),
        log: Some([vec![0.0; 36], vec![0.0; 24], vec![0.0; 48]]),
        max_tokens: 4,
        num_pending: vec![4, 0],
        pending_path: vec![],
        capture: Capture::DeltaLog,
        captured: f32s(2 * 2 * 12),
        max_captured: 2,
        checkpoints: None,
        out: Matrix::new(3, 4),
    }
}

impl DeltaRule {
    fn inputs(&self) -> Result<DeltaRuleInputs<'_>, Error> {
        let decay = &self.decay[..];
        Ok(DeltaRuleInputs {
            dims: GdnDims::new(1, 2, 3, 2)?.with_decay_shape(self.decay_shape),
            q: self.q.rows(),
            k: self.k.rows(),
            v: self.v.rows(),
            decay: match self.form {
                Form::Log => Decay::Log(decay),
                Form::Linear => Decay::Linear(decay),
                Form::NegLog => Decay::NegLog(decay),
                Form::Gate => Decay::Gate { a: decay, a_log: &self.a_log, dt_bias: &self.dt_bias },
            },
            beta: if self.logit { Beta::Logit(&self.beta) } else { Beta::Value(&self.beta) },
            scale: self.scale,
            head_map: HeadMap::Grouped,
            qk_norm: self.qk_norm,
            rounding: Rounding::F32,
            cu_seqlens: &self.cu_seqlens,
            state_indices: &self.state_indices,
            parents: &self.parents,
        })
    }
}

/// What the recurrent and the chunked form check alike.
const INPUTS: &Table<DeltaRule> = &[
    (
        |x| x.cu_seqlens.clear(),
        "`cu_seqlens` is missing, expected it because it needs num_seqs + 1 entries, at least one",
    ),
    (|x| x.cu_seqlens[0] = -1, "`cu_seqlens`[0] is -1, expected 0"),
    (|x| x.cu_seqlens[1] = 4, "`cu_seqlens`[2] is 3, expected at least the entry before it"),
    (|x| x.cu_seqlens[2] = 4, "`q` has 9 elements, expected at least 12 for 4 rows of 3 at stride 3"),
    (|x| x.state_indices.push(1), "`state_indices` has 3 elements, expected 2 = [num_seqs=2]"),
    (|x| x.state_indices[0] = 3, "`state_indices`[0] is 3, expected -1 (padding) or 0..3"),
    (|x| x.state_indices[0] = i32::MIN, "`state_indices`[0] is -2147483648, expected -1 (padding) or 0..3"),
    (|x| x.state_indices[0] = 0, "`state_indices`[1] is slot 0 again, first at [0]: a slot may stand once in a call"),
    (|x| x.q.stride = 2, "`q` has row stride 2, expected at least the row length 3"),
    (|x| x.q.data.truncate(8), "`q` has 8 elements, expected at least 9 for 3 rows of 3 at stride 3"),
    (|x| x.k.stride = 2, "`k` has row stride 2, expected at least the row length 3"),
    (|x| x.k.stride = usize::MAX, KEYS_OVERFLOW),
    (|x| x.v.stride = 3, "`v` has row stride 3, expected at least the row length 4"),
    (|x| x.v.data.truncate(11), "`v` has 11 elements, expected at least 12 for 3 rows of 4 at stride 4"),
    (|x| x.decay.truncate(5), "`decay` has 5 elements, expected 6 = [num_tokens=3, num_v_heads=2]"),
    (
        |x| (x.form, x.decay) = (Form::Linear, vec![1.0; 3]),
        "`decay` has 3 elements, expected 6 = [num_tokens=3, num_v_heads=2]",
    ),
    (
        |x| (x.form, x.decay) = (Form::NegLog, vec![1.0; 7]),
        "`decay` has 7 elements, expected 6 = [num_tokens=3, num_v_heads=2]",
    ),
    (
        |x| (x.form, x.decay) = (Form::Gate, vec![1.0; 2]),
        "`a` has 2 elements, expected 6 = [num_tokens=3, num_v_heads=2]",
    ),
    (|x| (x.form, x.a_log) = (Form::Gate, vec![1.0; 6]), "`A_log` has 6 elements, expected 2 = [num_v_heads=2]"),
    (|x| (x.form, x.dt_bias) = (Form::Gate, vec![]), "`dt_bias` has 0 elements, expected 2 = [num_v_heads=2]"),
    (|x| x.beta.truncate(2), "`beta` has 2 elements, expected 6 = [num_tokens=3, num_v_heads=2]"),
    (
        |x| (x.logit, x.beta) = (true, vec![0.0; 12]),
        "`beta` has 12 elements, expected 6 = [num_tokens=3, num_v_heads=2]",
    ),
    (|x| x.scale = f32::INFINITY, "`scale` is inf, expected a finite number"),
    (|x| x.scale = f32::NEG_INFINITY, "`scale` is -inf, expected a finite number"),
    (|x| x.qk_norm = QkNorm::L2Norm { eps: -1e-6 }, "`eps` is -0.000001, expected a finite number, at least 0"),
    (|x| x.qk_norm = QkNorm::L2Norm { eps: f32::INFINITY }, "`eps` is inf, expected a finite number, at least 0"),
    (|x| x.out.stride = 3, "`out` has row stride 3, expected at least the row length 4"),
    (|x| x.out.data.truncate(11), "`out` has 11 elements, expected at least 12 for 3 rows of 4 at stride 4"),
    (
        |x| x.state = f32s(35),
        "`state` has 35 elements, expected 36 = [num_slots=3, num_v_heads=2, head_v_dim=2, head_k_dim=3]",
    ),
    (
        |x| x.state = States::zeros(DType::F16, 37),
        "`state` has 37 elements, expected 36 = [num_slots=3, num_v_heads=2, head_v_dim=2, head_k_dim=3]",
    ),
    (|x| x.parents = vec![-1, 0], "`parents` has 2 elements, expected 3 = [num_tokens=3]"),
    (
        |x| x.parents = vec![-2, 0, -1],
        "`parents`[0] is -2, expected -1 (the committed state) or 0..0: parents come first",
    ),
    (
        |x| x.parents = vec![-1, 1, -1],
        "`parents`[1] is 1, expected -1 (the committed state) or 0..1: parents come first",
    ),
    // Positions count from the start of the sequence's own window.
    (
        |x| x.parents = vec![-1, 0, 1],
        "`parents`[2] is 1, expected -1 (the committed state) or 0..0: parents come first",
    ),
    (
        |x| x.parents = vec![-1, i32::MAX, -1],
        "`parents`[1] is 2147483647, expected -1 (the committed state) or 0..1: parents come first",
    ),
    (
        |x| x.parents = vec![-1, -1, i32::MIN],
        "`parents`[2] is -2147483648, expected -1 (the committed state) or 0..0: parents come first",
    ),
    (
        |x| x.decay_shape = DecayShape::PerChannel,
        "`decay` has 6 elements, expected 18 = [num_tokens=3, num_v_heads=2, head_k_dim=3]",
    ),
    (
        |x| (x.decay_shape, x.form) = (DecayShape::PerChannel, Form::Gate),
        "`a` has 6 elements, expected 18 = [num_tokens=3, num_v_heads=2, head_k_dim=3]",
    ),
    (
        |x| (x.decay_shape, x.form, x.decay) = (DecayShape::PerChannel, Form::Gate, vec![0.0; 18]),
        "`dt_bias` has 2 elements, expected 6 = [num_v_heads=2, head_k_dim=3]",
    ),
    (
        |x| {
            (x.decay_shape, x.form, x.decay) = (DecayShape::PerChannel, Form::Gate, vec![0.0; 18]);
            (x.a_log, x.dt_bias) = (vec![0.0; 6], vec![0.0; 6]);
        },
        "`A_log` has 6 elements, expected 2 = [num_v_heads=2]",
    ),
    (
        |x| x.num_slots = usize::MAX,
        "`state` needs [num_slots=18446744073709551615, num_v_heads=2, head_v_dim=2, head_k_dim=3] elements in total, \
         which overflows",
    ),
];
const KEYS_OVERFLOW: &str =
    "`k` has 9 elements, expected at least 18446744073709551615 for 3 rows of 3 at stride 18446744073709551615";

/// NaN is not equal to itself, so it stands outside the tables.
#[test]
fn nan_is_no_number() {
    for make in [recurrent, chunk] {
        let mut args = delta_rule();
        args.scale = f32::NAN;
        assert_eq!(make(&mut args).unwrap_err().to_string(), "`scale` is NaN, expected a finite number");
        let mut args = delta_rule();
        args.qk_norm = QkNorm::L2Norm { eps: f32::NAN };
        assert_eq!(make(&mut args).unwrap_err().to_string(), "`eps` is NaN, expected a finite number, at least 0");
    }
}

fn recurrent(args: &mut DeltaRule) -> Result<(), Error> {
    let DeltaRule { mut state, mut log, mut captured, mut out, .. } = args.clone();
    let result = FusedRecurrentArgs {
        inputs: args.inputs()?,
        num_slots: args.num_slots,
        state: state.data_mut(),
        log: log.as_mut().map(|[k, decay, delta]| DeltaLogMut { k, decay, delta, max_tokens: args.max_tokens }),
        num_pending: &args.num_pending,
        pending_path: &args.pending_path,
        capture: match args.capture {
            Capture::Final => CaptureMut::Final,
            Capture::DeltaLog => CaptureMut::DeltaLog,
            Capture::PerToken => CaptureMut::PerToken { states: captured.data_mut(), max_tokens: args.max_captured },
        },
        out: out.rows_mut(),
    }
    .check()
    .map(drop);
    (args.state, args.log, args.captured, args.out) = (state, log, captured, out);
    result
}

#[test]
fn fused_recurrent_gated_delta_rule() {
    run(&delta_rule(), recurrent, INPUTS);
    let table: &Table<DeltaRule> = &[
        (
            |x| x.log = Some([vec![], vec![0.0; 24], vec![0.0; 48]]),
            "`log.k` has 0 elements, expected 36 = [num_slots=3, max_tokens=4, num_k_heads=1, head_k_dim=3]",
        ),
        (
            |x| x.log = Some([vec![0.0; 36], vec![0.0; 23], vec![0.0; 48]]),
            "`log.decay` has 23 elements, expected 24 = [num_slots=3, max_tokens=4, num_v_heads=2]",
        ),
        (
            |x| x.log = Some([vec![0.0; 36], vec![0.0; 24], vec![0.0; 49]]),
            "`log.delta` has 49 elements, expected 48 = [num_slots=3, max_tokens=4, num_v_heads=2, head_v_dim=2]",
        ),
        (
            |x| (x.capture, x.captured) = (Capture::PerToken, f32s(47)),
            "`capture.states` has 47 elements, expected 48 = [num_seqs=2, max_tokens=2, num_v_heads=2, head_v_dim=2, \
             head_k_dim=3]",
        ),
        (
            |x| (x.capture, x.max_captured) = (Capture::PerToken, usize::MAX),
            "`capture.states` needs [num_seqs=2, max_tokens=18446744073709551615, num_v_heads=2, head_v_dim=2, \
             head_k_dim=3] elements in total, which overflows",
        ),
        (
            |x| (x.capture, x.captured, x.max_captured) = (Capture::PerToken, f32s(24), 1),
            "`windows`[0] is 2 tokens, expected at most `max_tokens` = 1",
        ),
        (|x| x.num_pending.push(0), "`num_pending` has 3 elements, expected 2 = [num_seqs=2]"),
        (|x| x.num_pending[1] = 5, "`num_pending`[1] is 5 tokens, expected at most `max_tokens` = 4"),
        (|x| x.log = None, "`log` is missing, expected it because the capture is `DeltaLog`"),
        (
            |x| (x.log, x.capture) = (None, Capture::Final),
            "`log` is missing, expected it because `num_pending` is not zero",
        ),
        (
            |x| (x.log, x.capture) = (None, Capture::PerToken),
            "`log` is missing, expected it because `num_pending` is not zero",
        ),
        (
            |x| {
                x.log = Some([vec![0.0; 9], vec![0.0; 6], vec![0.0; 12]]);
                (x.max_tokens, x.num_pending) = (1, vec![]);
            },
            "`windows`[0] is 2 tokens, expected at most `max_tokens` = 1",
        ),
        (
            |x| (x.decay_shape, x.decay) = (DecayShape::PerChannel, vec![0.0; 18]),
            "`log.decay` has 24 elements, expected 72 = [num_slots=3, max_tokens=4, num_v_heads=2, head_k_dim=3]",
        ),
        (
            |x| (x.capture, x.captured) = (Capture::PerToken, States::zeros(DType::Bf16, 48)),
            "`capture.states` is bf16, expected f32 as `state`",
        ),
        (
            |x| (x.capture, x.state) = (Capture::PerToken, States::zeros(DType::F16, 36)),
            "`capture.states` is f32, expected f16 as `state`",
        ),
        (|x| x.pending_path = vec![0; 4], "`pending_path` has 4 elements, expected 8 = [num_seqs=2, max_tokens=4]"),
        (
            |x| x.pending_path = vec![0, 1, 1, 3, 0, 0, 0, 0],
            "`pending_path`[0][2] is log entry 1, expected 2..4: a path rises",
        ),
        (
            |x| x.pending_path = vec![0, 1, 2, 4, 0, 0, 0, 0],
            "`pending_path`[0][3] is log entry 4, expected 3..4: a path rises",
        ),
        (
            |x| (x.num_pending, x.pending_path) = (vec![0, 2], vec![9, 9, 9, 9, 3, 3, 9, 9]),
            "`pending_path`[1][1] is log entry 3, expected 4..4: a path rises",
        ),
        (
            |x| (x.num_pending, x.pending_path) = (vec![1, 0], vec![u32::MAX; 8]),
            "`pending_path`[0][0] is log entry 4294967295, expected 0..4: a path rises",
        ),
        (
            |x| {
                (x.log, x.capture) = (None, Capture::Final);
                (x.num_pending, x.pending_path) = (vec![], vec![0; 8]);
            },
            "`pending_path` has 8 elements, expected 0 = [num_seqs=2, max_tokens=0]",
        ),
        (|x| (x.capture, x.parents) = (Capture::Final, vec![-1, -1, -1]), TREE_WITH_FINAL),
    ];
    run(&delta_rule(), recurrent, table);
    // What lies behind a path's end does not count; chains may be told under every capture.
    let told = DeltaRule { parents: vec![-1, 0, -1], pending_path: vec![0, 1, 2, 3, 9, 9, 9, 9], ..delta_rule() };
    for capture in [Capture::Final, Capture::DeltaLog, Capture::PerToken] {
        run(&DeltaRule { capture, ..told.clone() }, recurrent, &[]);
    }
    let tree = DeltaRule { parents: vec![-1, -1, -1], ..told };
    for capture in [Capture::DeltaLog, Capture::PerToken] {
        run(&DeltaRule { capture, ..tree.clone() }, recurrent, &[]);
    }
    let channels = DeltaRule {
        decay_shape: DecayShape::PerChannel,
        decay: vec![0.0; 18],
        dt_bias: vec![0.0; 6],
        log: Some([vec![0.0; 36], vec![0.0; 72], vec![0.0; 48]]),
        state: States::zeros(DType::F16, 36),
        captured: States::zeros(DType::F16, 48),
        ..tree
    };
    for form in [Form::Log, Form::Gate] {
        run(&DeltaRule { form, capture: Capture::PerToken, ..channels.clone() }, recurrent, &[]);
    }
    // Padding needs no room and may say anything; `Final` and `PerToken` need no log where nothing is pending.
    let padded = DeltaRule {
        state_indices: vec![-1, -1],
        num_pending: vec![u32::MAX, 9],
        pending_path: vec![],
        log: Some([vec![], vec![], vec![]]),
        max_tokens: 0,
        ..delta_rule()
    };
    run(&padded, recurrent, &[]);
    let per_token = DeltaRule { capture: Capture::PerToken, captured: f32s(0), max_captured: 0, ..padded };
    run(&per_token, recurrent, &[]);
    for capture in [Capture::Final, Capture::PerToken] {
        run(&DeltaRule { capture, log: None, num_pending: vec![], ..delta_rule() }, recurrent, &[]);
    }
    let empty = DeltaRule {
        cu_seqlens: vec![0],
        state_indices: vec![],
        num_pending: vec![],
        decay: vec![],
        beta: vec![],
        ..delta_rule()
    };
    run(&empty, recurrent, &[]);
}

const TREE_WITH_FINAL: &str = "back end `any` does not support a draft tree with capture `Final`: use `DeltaLog`, which \
                               keeps the state until a path is chosen";

fn chunk(args: &mut DeltaRule) -> Result<(), Error> {
    let DeltaRule { mut state, mut checkpoints, mut out, .. } = args.clone();
    let result = ChunkGatedDeltaRuleArgs {
        inputs: args.inputs()?,
        num_slots: args.num_slots,
        state: state.data_mut(),
        checkpoints: checkpoints
            .as_mut()
            .map(|(states, every)| CheckpointsMut { states: states.data_mut(), every: *every }),
        out: out.rows_mut(),
    }
    .check()
    .map(drop);
    (args.state, args.checkpoints, args.out) = (state, checkpoints, out);
    result
}

#[test]
fn chunk_gated_delta_rule() {
    run(&delta_rule(), chunk, INPUTS);
    let table: &Table<DeltaRule> = &[
        (|x| x.checkpoints = Some((f32s(0), 0)), "`checkpoints.every` is 0, expected 1..=9223372036854775807"),
        (
            |x| x.checkpoints = Some((f32s(0), 2)),
            "`checkpoints.states` has 0 elements, expected 12 = [num_checkpoints=1, num_v_heads=2, head_v_dim=2, \
             head_k_dim=3]",
        ),
        (
            |x| x.checkpoints = Some((f32s(24), 1)),
            "`checkpoints.states` has 24 elements, expected 36 = [num_checkpoints=3, num_v_heads=2, head_v_dim=2, \
             head_k_dim=3]",
        ),
        (
            |x| x.checkpoints = Some((f32s(12), 3)),
            "`checkpoints.states` has 12 elements, expected 0 = [num_checkpoints=0, num_v_heads=2, head_v_dim=2, \
             head_k_dim=3]",
        ),
        (
            |x| x.checkpoints = Some((States::zeros(DType::F16, 36), 1)),
            "`checkpoints.states` is f16, expected f32 as `state`",
        ),
        (
            |x| {
                x.state = States::zeros(DType::Bf16, 36);
                x.checkpoints = Some((f32s(36), 1));
            },
            "`checkpoints.states` is f32, expected bf16 as `state`",
        ),
        (|x| x.parents = vec![-1, -1, -1], TREE_WITH_FINAL),
    ];
    run(&delta_rule(), chunk, table);
    run(&DeltaRule { parents: vec![-1, 0, -1], checkpoints: Some((f32s(12), 2)), ..delta_rule() }, chunk, &[]);
    run(&DeltaRule { checkpoints: Some((f32s(0), usize::MAX)), ..delta_rule() }, chunk, &[]);
}

#[derive(Clone, Debug, PartialEq)]
struct Commit {
    decay_shape: DecayShape,
    num_slots: usize,
    state: States,
    log: [Vec<f32>; 3],
    max_tokens: usize,
    state_indices: Vec<i32>,
    num_kept: Vec<u32>,
    path: Vec<u32>,
}

#[test]
fn commit_states() {
    // H = 1, HV = 2, K = 3, V = 2; slots 2 and 0 of 3, logs of 4 tokens.
    let good = Commit {
        decay_shape: DecayShape::PerHead,
        num_slots: 3,
        state: f32s(36),
        log: [vec![0.0; 36], vec![0.0; 24], vec![0.0; 48]],
        max_tokens: 4,
        state_indices: vec![2, 0, -1],
        num_kept: vec![4, 0, u32::MAX],
        path: vec![],
    };
    let check = |args: &mut Commit| {
        let [k, decay, delta] = &mut args.log;
        CommitStatesArgs {
            dims: GdnDims::new(1, 2, 3, 2)?.with_decay_shape(args.decay_shape),
            head_map: HeadMap::Grouped,
            num_slots: args.num_slots,
            state: args.state.data_mut(),
            log: DeltaLogMut { k, decay, delta, max_tokens: args.max_tokens },
            state_indices: &args.state_indices,
            num_kept: &args.num_kept,
            path: &args.path,
        }
        .check()
        .map(drop)
    };
    let table: &Table<Commit> = &[
        (|x| x.state_indices[0] = 3, "`state_indices`[0] is 3, expected -1 (padding) or 0..3"),
        (|x| x.state_indices[1] = -5, "`state_indices`[1] is -5, expected -1 (padding) or 0..3"),
        (
            |x| x.state_indices[2] = 2,
            "`state_indices`[2] is slot 2 again, first at [0]: a slot may stand once in a call",
        ),
        (
            |x| x.state = f32s(37),
            "`state` has 37 elements, expected 36 = [num_slots=3, num_v_heads=2, head_v_dim=2, head_k_dim=3]",
        ),
        (
            |x| x.log[0].truncate(35),
            "`log.k` has 35 elements, expected 36 = [num_slots=3, max_tokens=4, num_k_heads=1, head_k_dim=3]",
        ),
        (
            |x| x.log[1].truncate(8),
            "`log.decay` has 8 elements, expected 24 = [num_slots=3, max_tokens=4, num_v_heads=2]",
        ),
        (
            |x| x.log[2].truncate(47),
            "`log.delta` has 47 elements, expected 48 = [num_slots=3, max_tokens=4, num_v_heads=2, head_v_dim=2]",
        ),
        (
            |x| x.max_tokens = usize::MAX,
            "`log.k` needs [num_slots=3, max_tokens=18446744073709551615, num_k_heads=1, head_k_dim=3] elements in total, \
             which overflows",
        ),
        (|x| x.num_kept.truncate(2), "`num_kept` has 2 elements, expected 3 = [num_seqs=3]"),
        (|x| x.num_kept[1] = 5, "`num_kept`[1] is 5 tokens, expected at most `max_tokens` = 4"),
        (
            |x| x.decay_shape = DecayShape::PerChannel,
            "`log.decay` has 24 elements, expected 72 = [num_slots=3, max_tokens=4, num_v_heads=2, head_k_dim=3]",
        ),
        (|x| x.path = vec![0; 11], "`path` has 11 elements, expected 12 = [num_seqs=3, max_tokens=4]"),
        (|x| x.path = vec![0; 12], "`path`[0][1] is log entry 0, expected 1..4: a path rises"),
        (
            |x| (x.num_kept, x.path) = (vec![2, 3, 0], vec![1, 3, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0]),
            "`path`[1][2] is log entry 1, expected 3..4: a path rises",
        ),
        (
            |x| (x.num_kept, x.path) = (vec![1, 0, 0], vec![4; 12]),
            "`path`[0][0] is log entry 4, expected 0..4: a path rises",
        ),
    ];
    run(&good, check, table);
    // Padding, and what lies behind a path's end, may say anything.
    let path = vec![0, 1, 2, 3, 9, 9, 9, 9, 9, 9, 9, 9];
    let log = [vec![0.0; 36], vec![0.0; 72], vec![0.0; 48]];
    let state = States::zeros(DType::Bf16, 36);
    run(&Commit { decay_shape: DecayShape::PerChannel, log, state, path, ..good }, check, &[]);
}
