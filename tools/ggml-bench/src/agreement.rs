//! Whether ggml and undraft compute the same, and whether the comparison would notice if they did not.

use anyhow::{Result, ensure};
use undraft::cpu::CpuBackend;
use undraft::{DecayShape, GdnDims, HeadMap, state_to_key_major};

use crate::ggml::{Cache, GatedDeltaNet};
use crate::recurrence::{Log, Window, commit};
use crate::tokens::{Random, Sizes, Tokens};

/// Largest difference allowed, relative to the root mean square of ggml's values.
const TOLERANCE: f64 = 2e-5;
/// Least difference that a wrong layout must make.
const WRONG: f64 = 1e-2;

/// Compares outputs, final states and, where a window has snapshots, the states after each number of kept tokens; prints a
/// line for each case.
///
/// # Errors
/// Where values differ by more than the tolerance, or where a wrong layout goes unnoticed.
pub fn check(backend: &CpuBackend) -> Result<()> {
    println!(
        "deviation of undraft from ggml, max |difference| / RMS; at most {TOLERANCE:.0e}, wrong layouts at least {WRONG:.0e}"
    );
    println!(
        "{:<12} {:>4} {:<12} {:>3} {:>9} {:>9} {:>9} {:>16} {:>16}",
        "H/HV", "K=V", "decay", "T", "o", "state", "kept", "grouped heads", "state [K, V]"
    );
    let mut random = Random(1);
    for dims in [GdnDims::new(16, 32, 128, 128)?, GdnDims::new(3, 12, 37, 37)?] {
        for decay_shape in [DecayShape::PerHead, DecayShape::PerChannel] {
            for num_tokens in [1, 4, 64] {
                check_case(backend, Sizes { dims: dims.with_decay_shape(decay_shape), num_tokens }, &mut random)?;
            }
        }
    }
    Ok(())
}

fn check_case(backend: &CpuBackend, sizes: Sizes, random: &mut Random) -> Result<()> {
    let Sizes { dims, num_tokens } = sizes;
    let tokens = Tokens::new(sizes, random)?;
    let mut before = vec![0.0; dims.state_len()];
    random.fill(&mut before, -1.0, 1.0);
    let mut ggml = GatedDeltaNet::new(sizes, 1)?;
    ggml.run(&tokens, &before)?;

    // Deviation of outputs and of the final state.
    let deviations = |head_map, before: &[f32]| -> Result<[f64; 2]> {
        let (mut state, mut o) = (before.to_vec(), vec![f32::NAN; num_tokens * dims.value_dim()]);
        Window { sizes, tokens: &tokens, head_map, state: &mut state, slot: 0, out: &mut o }.advance(backend)?;
        Ok([deviation(&o, ggml.o()), deviation(&state, ggml.snapshot(0))])
    };
    let [o, state] = deviations(HeadMap::Tiled, &before)?;
    let [grouped, _] = deviations(HeadMap::Grouped, &before)?;
    let mut transposed = vec![0.0; dims.state_len()];
    state_to_key_major(&dims, &before, &mut transposed)?;
    let [key_major, _] = deviations(HeadMap::Tiled, &transposed)?;
    let kept = if num_tokens <= 4 { Some(check_kept(backend, sizes, &tokens, &before)?) } else { None };

    let decay = format!("{:?}", dims.decay_shape());
    let heads = format!("{}/{}", dims.num_k_heads(), dims.num_v_heads());
    let kept_text = kept.map_or("-".into(), |kept| format!("{kept:.1e}"));
    println!(
        "{heads:<12} {:>4} {decay:<12} {num_tokens:>3} {o:>9.1e} {state:>9.1e} {kept_text:>9} {grouped:>16.1e} {key_major:>16.1e}",
        dims.head_k_dim()
    );
    for (what, got) in [("outputs", o), ("final states", state), ("states of kept tokens", kept.unwrap_or(0.0))] {
        ensure!(got <= TOLERANCE, "{what} deviate by {got:.1e}, expected at most {TOLERANCE:.0e}");
    }
    for (what, got) in [("grouped key heads", grouped), ("a key-major state", key_major)] {
        ensure!(got >= WRONG, "outputs with {what} deviate by {got:.1e}, expected at least {WRONG:.0e}");
    }
    Ok(())
}

/// Deviation of verify with a log and a commit of 1 to all tokens from ggml's snapshots.
fn check_kept(backend: &CpuBackend, sizes: Sizes, tokens: &Tokens, before: &[f32]) -> Result<f64> {
    let Sizes { dims, num_tokens } = sizes;
    let mut ggml = GatedDeltaNet::new(sizes, num_tokens)?;
    ggml.run(tokens, before)?;
    let mut log = Log::new(&dims, 1, num_tokens)?;
    let (mut state, mut o) = (before.to_vec(), vec![f32::NAN; num_tokens * dims.value_dim()]);
    let window = Window { sizes, tokens, head_map: HeadMap::Tiled, state: &mut state, slot: 0, out: &mut o };
    window.verify(backend, &mut log, 0)?;
    let mut worst = deviation(&o, ggml.o());
    for num_kept in 1..=num_tokens {
        let mut after = state.clone();
        commit(backend, dims, &mut after, &mut log, u32::try_from(num_kept)?)?;
        worst = worst.max(deviation(&after, ggml.snapshot(num_tokens - num_kept)));
    }
    check_store(sizes, tokens, before, &ggml)?;
    Ok(worst)
}

/// The timed copy into a cache must bring each snapshot to its place, and touch no other slot.
fn check_store(sizes: Sizes, tokens: &Tokens, before: &[f32], alone: &GatedDeltaNet) -> Result<()> {
    let (len, snapshots, num_slots, slot) = (sizes.dims.state_len(), sizes.num_tokens, 3, 1);
    let read_plane = snapshots - 1;
    let mut planes = vec![f32::NAN; snapshots * num_slots * len];
    planes[(read_plane * num_slots + slot) * len..][..len].copy_from_slice(before);
    let cache = Cache { planes: &mut planes, slot, read_plane };
    GatedDeltaNet::with_store(sizes, snapshots, num_slots)?.run_and_store(tokens, cache)?;
    for (index, state) in planes.chunks_exact(len).enumerate() {
        let (back, at) = (index / num_slots, index % num_slots);
        let as_expected = if at == slot { state == alone.snapshot(back) } else { state.iter().all(|x| x.is_nan()) };
        ensure!(
            as_expected,
            "plane {back} of slot {at} of the cache is not as expected after a store into slot {slot}"
        );
    }
    Ok(())
}

/// `max |a - b| / RMS(b)`; infinite where a number is not finite.
fn deviation(a: &[f32], b: &[f32]) -> f64 {
    let square: f64 = b.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let rms = (square / b.len() as f64).sqrt();
    let worst = a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs());
    // `max` would pass over NaN.
    let worst = worst.fold(0.0, |most, x| if x.is_nan() || x > most { x } else { most }) / rms;
    if worst.is_finite() { worst } else { f64::INFINITY }
}
