//! The recurrence, the chunked form and the replay.

use undraft_core::ops::{ChunkGatedDeltaRuleArgs, CommitStatesArgs, DeltaRuleInputs, FusedRecurrentArgs};
use undraft_core::{Beta, Capture, CaptureMut, Decay, DeltaLogMut, Error, GdnDims, HeadMap, QkNorm, Rounding};

use super::{Matrix, Table, run};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Log,
    Linear,
    NegLog,
    Gate,
}

#[derive(Clone, Debug, PartialEq)]
struct DeltaRule {
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
    num_slots: usize,
    state: Vec<f32>,
    log: Option<[Vec<f32>; 3]>,
    max_tokens: usize,
    num_pending: Vec<u32>,
    capture: Capture,
    captured: Vec<f32>,
    max_captured: usize,
    out: Matrix,
}

/// H = 1, HV = 2, K = 3, V = 2; sequences of 2 and 1 tokens in slots 2 and 0 of 3, logs of 4 tokens.
fn delta_rule() -> DeltaRule {
    DeltaRule {
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
        num_slots: 3,
        state: vec![0.0; 36],
        log: Some([vec![0.0; 36], vec![0.0; 24], vec![0.0; 48]]),
        max_tokens: 4,
        num_pending: vec![4, 0],
        capture: Capture::DeltaLog,
        captured: vec![0.0; 2 * 2 * 12],
        max_captured: 2,
        out: Matrix::new(3, 4),
    }
}

impl DeltaRule {
    fn inputs(&self) -> Result<DeltaRuleInputs<'_>, Error> {
        let decay = &self.decay[..];
        Ok(DeltaRuleInputs {
            dims: GdnDims::new(1, 2, 3, 2)?,
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
        |x| x.state.truncate(35),
        "`state` has 35 elements, expected 36 = [num_slots=3, num_v_heads=2, head_v_dim=2, head_k_dim=3]",
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
        state: &mut state,
        log: log.as_mut().map(|[k, decay, delta]| DeltaLogMut { k, decay, delta, max_tokens: args.max_tokens }),
        num_pending: &args.num_pending,
        capture: match args.capture {
            Capture::Final => CaptureMut::Final,
            Capture::DeltaLog => CaptureMut::DeltaLog,
            Capture::PerToken => CaptureMut::PerToken { states: &mut captured, max_tokens: args.max_captured },
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
            |x| (x.capture, x.captured) = (Capture::PerToken, vec![0.0; 47]),
            "`capture.states` has 47 elements, expected 48 = [num_seqs=2, max_tokens=2, num_v_heads=2, head_v_dim=2, \
             head_k_dim=3]",
        ),
        (
            |x| (x.capture, x.max_captured) = (Capture::PerToken, usize::MAX),
            "`capture.states` needs [num_seqs=2, max_tokens=18446744073709551615, num_v_heads=2, head_v_dim=2, \
             head_k_dim=3] elements in total, which overflows",
        ),
        (
            |x| (x.capture, x.captured, x.max_captured) = (Capture::PerToken, vec![0.0; 24], 1),
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
    ];
    run(&delta_rule(), recurrent, table);
    // Padding needs no room and may say anything; `Final` and `PerToken` need no log where nothing is pending.
    let padded = DeltaRule {
        state_indices: vec![-1, -1],
        num_pending: vec![u32::MAX, 9],
        log: Some([vec![], vec![], vec![]]),
        max_tokens: 0,
        ..delta_rule()
    };
    run(&padded, recurrent, &[]);
    let per_token = DeltaRule { capture: Capture::PerToken, captured: vec![], max_captured: 0, ..padded };
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

fn chunk(args: &mut DeltaRule) -> Result<(), Error> {
    let DeltaRule { mut state, mut out, .. } = args.clone();
    let inputs = args.inputs()?;
    let result = ChunkGatedDeltaRuleArgs { inputs, num_slots: args.num_slots, state: &mut state, out: out.rows_mut() }
        .check()
        .map(drop);
    (args.state, args.out) = (state, out);
    result
}

#[test]
fn chunk_gated_delta_rule() {
    run(&delta_rule(), chunk, INPUTS);
}

#[derive(Clone, Debug, PartialEq)]
struct Commit {
    num_slots: usize,
    state: Vec<f32>,
    log: [Vec<f32>; 3],
    max_tokens: usize,
    state_indices: Vec<i32>,
    num_kept: Vec<u32>,
}

#[test]
fn commit_states() {
    // H = 1, HV = 2, K = 3, V = 2; slots 2 and 0 of 3, logs of 4 tokens.
    let good = Commit {
        num_slots: 3,
        state: vec![0.0; 36],
        log: [vec![0.0; 36], vec![0.0; 24], vec![0.0; 48]],
        max_tokens: 4,
        state_indices: vec![2, 0, -1],
        num_kept: vec![4, 0, u32::MAX],
    };
    let check = |args: &mut Commit| {
        let [k, decay, delta] = &mut args.log;
        CommitStatesArgs {
            dims: GdnDims::new(1, 2, 3, 2)?,
            head_map: HeadMap::Grouped,
            num_slots: args.num_slots,
            state: &mut args.state,
            log: DeltaLogMut { k, decay, delta, max_tokens: args.max_tokens },
            state_indices: &args.state_indices,
            num_kept: &args.num_kept,
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
            |x| x.state.push(0.0),
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
    ];
    run(&good, check, table);
}
