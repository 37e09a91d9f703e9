//! Offsets beyond 2^31 elements: slots, log entries, captures and strides so far apart that a 32-bit index or product wraps.
//! The memory is reserved, not touched: only the pages of the slots in use ever hold anything.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use undraft_core::ops::{
    CausalConv1dFnArgs, CausalConv1dUpdateArgs, CommitStatesArgs, ConvLogMut, DeltaRuleInputs, FusedRecurrentArgs,
};
use undraft_core::{
    Activation, Backend, Beta, Capture, CaptureMut, ConvDims, DataMut, Decay, DeltaLogMut, GdnDims, HeadMap, QkNorm,
    Rounding, Rows, RowsMut, bf16,
};
use undraft_cpu::{CpuBackend, Isa};
use undraft_testing::Rng;

/// Types that all zero bits are a value of.
trait Zeroed: Copy {}
impl Zeroed for f32 {}
impl Zeroed for bf16 {}

/// Zeros that the system maps when they are touched.
struct Sparse<T> {
    start: *mut T,
    len: usize,
    layout: Layout,
}

impl<T: Zeroed> Sparse<T> {
    /// `None`, with a line that says so, if the system refuses.
    fn new(len: usize) -> Option<Self> {
        let layout = Layout::array::<T>(len).expect("a size that can be addressed");
        assert!(layout.size() > 0);
        // SAFETY: the layout is not empty.
        let start: *mut T = unsafe { alloc_zeroed(layout) }.cast();
        if start.is_null() {
            let line = format!("skipped: the system refuses {} GB of address space\n", layout.size() >> 30);
            // Past the capture of the test harness, which hides what a passing test prints.
            std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()).expect("standard error takes a line");
            return None;
        }
        Some(Self { start, len, layout })
    }
    fn all(&mut self) -> &mut [T] {
        // SAFETY: `len` elements of zeros, which are values of T, at `start`, borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl<T> Drop for Sparse<T> {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.cast(), self.layout) };
    }
}

fn backends() -> Vec<CpuBackend> {
    Isa::ALL.into_iter().filter_map(|isa| CpuBackend::with_isa(isa).ok()).collect()
}

/// One sequence of a few tokens; H = HV = 1.
struct Window {
    dims: GdnDims,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    g: Vec<f32>,
    beta: Vec<f32>,
    cu_seqlens: Vec<i32>,
    state_indices: Vec<i32>,
}

impl Window {
    fn new(k: usize, v: usize, num_tokens: usize, slot: i32) -> Self {
        let mut rng = Rng::new(4);
        let mut normals = |n: usize| (0..n).map(|_| rng.normal() as f32).collect::<Vec<f32>>();
        Self {
            dims: GdnDims::new(1, 1, k, v).expect("allowed sizes"),
            q: normals(num_tokens * k),
            k: normals(num_tokens * k),
            v: normals(num_tokens * v),
            g: vec![-0.25; num_tokens],
            beta: vec![0.5; num_tokens],
            cu_seqlens: vec![0, num_tokens as i32],
            state_indices: vec![slot],
        }
    }
    fn inputs(&self) -> DeltaRuleInputs<'_> {
        DeltaRuleInputs {
            dims: self.dims,
            q: Rows::new(&self.q[..], self.dims.key_dim()),
            k: Rows::new(&self.k[..], self.dims.key_dim()),
            v: Rows::new(&self.v[..], self.dims.value_dim()),
            decay: Decay::Log(&self.g),
            beta: Beta::Value(&self.beta),
            scale: 1.0,
            head_map: HeadMap::Grouped,
            qk_norm: QkNorm::L2Norm { eps: 1e-6 },
            rounding: Rounding::F32,
            cu_seqlens: &self.cu_seqlens,
            state_indices: &self.state_indices,
            parents: &[],
        }
    }
    /// Runs with capture `Final` on these states; gives the outputs.
    fn run(&self, backend: &CpuBackend, state: DataMut<'_>, num_slots: usize) -> Vec<f32> {
        let mut out = vec![0.0; self.v.len()];
        let args = FusedRecurrentArgs {
            inputs: self.inputs(),
            num_slots,
            state,
            log: None,
            num_pending: &[],
            pending_path: &[],
            capture: CaptureMut::Final,
            out: RowsMut::new(&mut out[..], self.dims.value_dim()),
        };
        let args = args.check().expect("the arguments are good");
        backend.fused_recurrent_gated_delta_rule(args).expect("it runs");
        out
    }
}

/// A number in every element, so that no slot looks like another.
fn initial(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i % 251) as f32 / 251.0 - 0.5).collect()
}

#[test]
fn states_of_a_slot_beyond_2_31_elements() {
    let len = 128 * 128;
    let slot = (1usize << 31) / len + 3;
    let Some(mut states) = Sparse::<f32>::new((slot + 1) * len) else { return };
    let (near, far) = (Window::new(128, 128, 3, 0), Window::new(128, 128, 3, slot as i32));
    for backend in backends() {
        let mut small = initial(len);
        let expected = near.run(&backend, (&mut small[..]).into(), 1);
        states.all()[slot * len..].copy_from_slice(&initial(len));
        let got = far.run(&backend, states.all().into(), slot + 1);
        assert_eq!(got, expected, "{}", backend.isa());
        assert!(states.all()[slot * len..] == small[..], "{}", backend.isa());
        // Where an offset modulo 2^31 or 2^32 would have led.
        assert!(states.all()[..4 * len].iter().all(|&x| x == 0.0), "{}", backend.isa());
    }
}

#[test]
fn sixteen_bit_states_of_a_slot_beyond_2_31_elements() {
    // K is no whole number of vectors.
    let len = 50 * 30;
    let slot = (1usize << 31) / len + 3;
    let Some(mut states) = Sparse::<bf16>::new((slot + 1) * len) else { return };
    let (near, far) = (Window::new(50, 30, 2, 0), Window::new(50, 30, 2, slot as i32));
    let values: Vec<bf16> = initial(len).into_iter().map(bf16::from_f32).collect();
    for backend in backends() {
        let mut small = values.clone();
        let expected = near.run(&backend, (&mut small[..]).into(), 1);
        states.all()[slot * len..].copy_from_slice(&values);
        let got = far.run(&backend, states.all().into(), slot + 1);
        assert_eq!(got, expected, "{}", backend.isa());
        assert!(states.all()[slot * len..] == small[..], "{}", backend.isa());
        assert!(states.all()[..4 * len].iter().all(|&x| x == bf16::ZERO), "{}", backend.isa());
    }
}

/// The largest slot that `state_indices` can name.
#[test]
fn slot_i32_max() {
    let slot = i32::MAX as usize;
    let Some(mut states) = Sparse::<bf16>::new(slot + 1) else { return };
    let (near, far) = (Window::new(1, 1, 4, 0), Window::new(1, 1, 4, i32::MAX));
    for backend in backends() {
        let mut small = [bf16::from_f32(0.75)];
        let expected = near.run(&backend, (&mut small[..]).into(), 1);
        states.all()[slot] = bf16::from_f32(0.75);
        let got = far.run(&backend, states.all().into(), slot + 1);
        assert_eq!((got, states.all()[slot]), (expected, small[0]), "{}", backend.isa());
        assert_eq!(states.all()[0], bf16::ZERO, "{}", backend.isa());
    }
}

/// Two slots of a log of so many entries that the second one's begin beyond 2^31 elements: verify, replay in the next
/// window, commit of a path.
#[test]
fn log_entries_beyond_2_31_elements() {
    let (k, v, tokens) = (17, 64, 3);
    let max_tokens = (1usize << 31) / v + 5;
    let (Some(mut log_k), Some(mut log_decay), Some(mut log_delta)) = (
        Sparse::<f32>::new(2 * max_tokens * k),
        Sparse::<f32>::new(2 * max_tokens),
        Sparse::<f32>::new(2 * max_tokens * v),
    ) else {
        return;
    };
    let window = Window::new(k, v, tokens, 1);
    let backend = CpuBackend::new();
    let (mut small_k, mut small_decay, mut small_delta) =
        (vec![0.0; 2 * tokens * k], vec![0.0; 2 * tokens], vec![0.0; 2 * tokens * v]);
    let mut results = Vec::new();
    for max_tokens in [tokens, max_tokens] {
        let mut log = match max_tokens {
            3 => DeltaLogMut { k: &mut small_k, decay: &mut small_decay, delta: &mut small_delta, max_tokens },
            _ => DeltaLogMut { k: log_k.all(), decay: log_decay.all(), delta: log_delta.all(), max_tokens },
        };
        let mut states = [initial(k * v), initial(k * v)].concat();
        let mut outs = Vec::new();
        for num_pending in [&[0u32], &[2]] {
            let mut out = vec![0.0; tokens * v];
            let args = FusedRecurrentArgs {
                inputs: window.inputs(),
                num_slots: 2,
                state: (&mut states[..]).into(),
                log: Some(log.reborrow()),
                num_pending,
                pending_path: &[],
                capture: CaptureMut::DeltaLog,
                out: RowsMut::new(&mut out[..], v),
            };
            backend.fused_recurrent_gated_delta_rule(args.check().expect("the arguments are good")).expect("it runs");
            outs.push(out);
        }
        let commit = CommitStatesArgs {
            dims: window.dims,
            head_map: HeadMap::Grouped,
            num_slots: 2,
            state: (&mut states[..]).into(),
            log: log.reborrow(),
            state_indices: &[1],
            num_kept: &[3],
            path: &[],
        };
        backend.commit_states(commit.check().expect("the arguments are good")).expect("it runs");
        let first = max_tokens * v;
        outs.extend([states, log.delta[first..first + tokens * v].to_vec()]);
        results.push(outs);
    }
    assert_eq!(results[0], results[1]);
}

#[test]
fn captured_states_beyond_2_31_elements() {
    let (k, v) = (64, 32);
    let max_tokens = (1usize << 31) / (k * v) + 2;
    let Some(mut captured) = Sparse::<f32>::new(2 * max_tokens * k * v) else { return };
    // The second of two sequences, whose captures begin beyond.
    let mut window = Window::new(k, v, 2, 0);
    (window.cu_seqlens, window.state_indices) = (vec![0, 0, 2], vec![1, 0]);
    let mut small = vec![0.0; 2 * 2 * k * v];
    let mut results = Vec::new();
    for (max_tokens, states) in [(2, &mut small[..]), (max_tokens, captured.all())] {
        let mut state = [initial(k * v), initial(k * v)].concat();
        let mut out = vec![0.0; 2 * v];
        let args = FusedRecurrentArgs {
            inputs: window.inputs(),
            num_slots: 2,
            state: (&mut state[..]).into(),
            log: None,
            num_pending: &[],
            pending_path: &[],
            capture: CaptureMut::PerToken { states: (&mut *states).into(), max_tokens },
            out: RowsMut::new(&mut out[..], v),
        };
        let args = args.check().expect("the arguments are good");
        CpuBackend::new().fused_recurrent_gated_delta_rule(args).expect("it runs");
        results.push((out, states[max_tokens * k * v..][..2 * k * v].to_vec()));
    }
    assert_eq!(results[0], results[1]);
}

/// q, k, v and the outputs as rows more than 2^31 elements apart.
#[test]
fn row_strides_beyond_2_31_elements() {
    let (k, v) = (33, 10);
    let stride = (1usize << 31) + 7;
    let Some(mut rows) = Sparse::<f32>::new(stride + 2 * k + v) else { return };
    let Some(mut far_out) = Sparse::<f32>::new(stride + v) else { return };
    let window = Window::new(k, v, 2, 0);
    for t in 0..2 {
        let row = &mut rows.all()[t * stride..][..2 * k + v];
        row[..k].copy_from_slice(&window.q[t * k..][..k]);
        row[k..2 * k].copy_from_slice(&window.k[t * k..][..k]);
        row[2 * k..].copy_from_slice(&window.v[t * v..][..v]);
    }
    let rows = &*rows.all();
    for backend in backends() {
        let mut states = [initial(k * v), initial(k * v)];
        let expected = window.run(&backend, (&mut states[0][..]).into(), 1);
        let args = FusedRecurrentArgs {
            inputs: DeltaRuleInputs {
                q: Rows::new(rows, stride),
                k: Rows::new(&rows[k..], stride),
                v: Rows::new(&rows[2 * k..], stride),
                ..window.inputs()
            },
            num_slots: 1,
            state: (&mut states[1][..]).into(),
            log: None,
            num_pending: &[],
            pending_path: &[],
            capture: CaptureMut::Final,
            out: RowsMut::new(far_out.all(), stride),
        };
        let args = args.check().expect("the arguments are good");
        backend.fused_recurrent_gated_delta_rule(args).expect("it runs");
        let far_out = far_out.all();
        let got = [&far_out[..v], &far_out[stride..]].concat();
        assert_eq!((got, &states[1]), (expected, &states[0]), "{}", backend.isa());
    }
}

#[test]
fn convolutions_beyond_2_31_elements() {
    let dims = ConvDims::new(1030, 4).expect("allowed sizes");
    let (c, len) = (dims.channels(), dims.state_len());
    let slot = (1usize << 31) / len + 2;
    let max_tokens = 3;
    let Some(mut states) = Sparse::<f32>::new((slot + 1) * len) else { return };
    let Some(mut log) = Sparse::<f32>::new((slot + 1) * max_tokens * c) else { return };
    let (x, weight) = (initial(3 * c), initial(4 * c));
    let (mut small_state, mut small_log) = (initial(len), vec![0.0; max_tokens * c]);
    states.all()[slot * len..].copy_from_slice(&small_state);
    let mut results = Vec::new();
    for (slot, state, log) in [(0, &mut small_state[..], &mut small_log[..]), (slot, states.all(), log.all())] {
        let mut outs = Vec::new();
        // A tree, then the path 0, 2 pending before it once more; then a prompt.
        for num_pending in [&[0u32], &[2]] {
            let mut out = vec![0.0; 3 * c];
            let args = CausalConv1dUpdateArgs {
                dims,
                x: Rows::new(&x[..], c),
                weight: &weight,
                bias: None,
                activation: Activation::Silu,
                cu_seqlens: &[0, 3],
                state_indices: &[slot as i32],
                num_slots: slot + 1,
                state,
                log: Some(ConvLogMut { x: log, max_tokens }),
                num_pending,
                pending_path: &[0, 2, 0],
                parents: &[-1, 0, 0],
                capture: Capture::DeltaLog,
                out: RowsMut::new(&mut out[..], c),
            };
            let args = args.check().expect("the arguments are good");
            CpuBackend::new().causal_conv1d_update(args).expect("it runs");
            outs.push(out);
        }
        let mut out = vec![0.0; 3 * c];
        let args = CausalConv1dFnArgs {
            dims,
            x: Rows::new(&x[..], c),
            weight: &weight,
            bias: None,
            activation: Activation::Silu,
            cu_seqlens: &[0, 3],
            state_indices: &[slot as i32],
            num_slots: slot + 1,
            state,
            out: RowsMut::new(&mut out[..], c),
        };
        CpuBackend::new().causal_conv1d_fn(args.check().expect("the arguments are good")).expect("it runs");
        outs.extend([out, state[slot * len..].to_vec(), log[slot * max_tokens * c..].to_vec()]);
        results.push(outs);
    }
    assert_eq!(results[0], results[1]);
}
