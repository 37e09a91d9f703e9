//! Layouts of states and weights that others use, converted at the border.

use crate::dims::{ConvDims, GdnDims};
use crate::error::{Result, check_len};

/// Order of the two inner axes of a recurrent state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StateLayout {
    /// `[.., V, K]`, ours.
    #[default]
    ValueMajor,
    /// `[.., K, V]`: HF, FLA.
    KeyMajor,
}

/// Turns `[HV, K, V]` (one slot) into `[HV, V, K]`.
///
/// # Errors
/// [`crate::Error::Length`] if a buffer does not hold one slot's state.
///
/// ```
/// use undraft_core::{GdnDims, state_to_value_major, state_to_key_major};
/// let dims = GdnDims::new(1, 1, 2, 3)?; // K = 2, V = 3
/// let key_major = [1., 2., 3., 4., 5., 6.]; // [K, V]
/// let mut ours = [0.0; 6];
/// state_to_value_major(&dims, &key_major, &mut ours)?;
/// assert_eq!(ours, [1., 4., 2., 5., 3., 6.]);
/// let mut back = [0.0; 6];
/// state_to_key_major(&dims, &ours, &mut back)?;
/// assert_eq!(back, key_major);
/// # Ok::<(), undraft_core::Error>(())
/// ```
pub fn state_to_value_major(dims: &GdnDims, key_major: &[f32], value_major: &mut [f32]) -> Result<()> {
    check_state(dims, "key_major", key_major.len())?;
    check_state(dims, "value_major", value_major.len())?;
    transpose(dims.num_v_heads(), dims.head_k_dim(), dims.head_v_dim(), key_major, value_major);
    Ok(())
}

/// Turns `[HV, V, K]` (one slot) into `[HV, K, V]`.
///
/// # Errors
/// [`crate::Error::Length`] if a buffer does not hold one slot's state.
pub fn state_to_key_major(dims: &GdnDims, value_major: &[f32], key_major: &mut [f32]) -> Result<()> {
    check_state(dims, "value_major", value_major.len())?;
    check_state(dims, "key_major", key_major.len())?;
    transpose(dims.num_v_heads(), dims.head_v_dim(), dims.head_k_dim(), value_major, key_major);
    Ok(())
}

/// Turns a convolution weight `[C, W]` (or `[C, 1, W]`, HF) into `[W, C]`, ours.
///
/// # Errors
/// [`crate::Error::Length`].
pub fn conv_weight_to_tap_major(dims: &ConvDims, channel_major: &[f32], tap_major: &mut [f32]) -> Result<()> {
    let shape = [("channels", dims.channels()), ("conv_width", dims.width())];
    check_len("channel_major", channel_major.len(), &shape)?;
    check_len("tap_major", tap_major.len(), &shape)?;
    transpose(1, dims.channels(), dims.width(), channel_major, tap_major);
    Ok(())
}

/// Turns a convolution state `[C, W - 1]` (one slot; the causal-conv1d package, vLLM) into `[W - 1, C]`, ours.
///
/// # Errors
/// [`crate::Error::Length`].
pub fn conv_state_to_time_major(dims: &ConvDims, channel_major: &[f32], time_major: &mut [f32]) -> Result<()> {
    check_conv_state(dims, "channel_major", channel_major.len())?;
    check_conv_state(dims, "time_major", time_major.len())?;
    transpose(1, dims.channels(), dims.width() - 1, channel_major, time_major);
    Ok(())
}

/// Turns a convolution state `[W - 1, C]` (one slot) into `[C, W - 1]`.
///
/// # Errors
/// [`crate::Error::Length`].
pub fn conv_state_to_channel_major(dims: &ConvDims, time_major: &[f32], channel_major: &mut [f32]) -> Result<()> {
    check_conv_state(dims, "time_major", time_major.len())?;
    check_conv_state(dims, "channel_major", channel_major.len())?;
    transpose(1, dims.width() - 1, dims.channels(), time_major, channel_major);
    Ok(())
}

fn check_state(dims: &GdnDims, arg: &'static str, got: usize) -> Result<()> {
    let shape =
        [("num_v_heads", dims.num_v_heads()), ("head_v_dim", dims.head_v_dim()), ("head_k_dim", dims.head_k_dim())];
    check_len(arg, got, &shape)
}

fn check_conv_state(dims: &ConvDims, arg: &'static str, got: usize) -> Result<()> {
    check_len(arg, got, &[("conv_width - 1", dims.width() - 1), ("channels", dims.channels())])
}

/// `[n, rows, cols]` to `[n, cols, rows]`.
fn transpose(n: usize, rows: usize, cols: usize, from: &[f32], to: &mut [f32]) {
    for (from, to) in from.chunks_exact(rows * cols).zip(to.chunks_exact_mut(rows * cols)).take(n) {
        for (r, row) in from.chunks_exact(cols).enumerate() {
            for (c, &x) in row.iter().enumerate() {
                to[c * rows + r] = x;
            }
        }
    }
}
