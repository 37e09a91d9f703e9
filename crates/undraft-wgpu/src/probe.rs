//! What a device's arithmetic is like, measured when it is opened.

use crate::batch::Batch;
use crate::buffer::Binding;
use crate::device::{Device, DeviceOptions};
use crate::error::Result;
use crate::kernel::{Access, KernelSource, Params};

/// What was measured of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Whether kernels exchange numbers through subgroups: the device has them, with 8 lanes or more, numbered as the
    /// invocations are. Otherwise they go through workgroup memory, which is slower and gives the same bits.
    pub has_subgroups: bool,
    /// Lanes of a subgroup, as a kernel was run with; 0 where there are none.
    pub subgroup_size: u32,
    /// Whether `fma` rounds once. Only then does the replay of a log give the bits of the CPU and of CUDA.
    pub fma_is_fused: bool,
    /// Whether results below the smallest normal number are kept; elsewhere they become 0.
    pub keeps_subnormals: bool,
    /// Whether sums are rounded to nearest, ties to even.
    pub rounds_to_nearest: bool,
}

crate::params! {
    struct ProbeParams { x: f32, y: f32, smallest: f32, half: f32, one: f32, tie: f32, nothing: f32, }
}

const PROBE: KernelSource<'_> = KernelSource {
    name: "probe",
    files: &[include_str!("../kernels/probe.wgsl")],
    params: ProbeParams::WGSL,
    buffers: &[Access::ReadWrite],
    exchanges: false,
    is_large: false,
};
const LANES: KernelSource<'_> = KernelSource {
    name: "probe_lanes",
    files: &[include_str!("../kernels/probe_lanes.wgsl")],
    params: ProbeParams::WGSL,
    buffers: &[Access::ReadWrite],
    exchanges: false,
    is_large: false,
};

/// Lanes that hold a row of a state: a subgroup has to have as many.
const GROUP: u32 = 8;
/// Invocations of the workgroups that lanes are looked at in.
const THREADS: u32 = 128;

impl Facts {
    pub(crate) fn measure(device: &Device, options: &DeviceOptions) -> Result<Self> {
        // x^2 = 1 + 2^-11 + 2^-24, whose last part a product of its own would round away.
        let params = ProbeParams {
            x: 1.0 + 2f32.powi(-12),
            y: -(1.0 + 2f32.powi(-11)),
            smallest: f32::MIN_POSITIVE,
            half: 0.5,
            one: 1.0,
            nothing: 0.0,
            // Half a unit in the last place of 1, and a little less than a tie with what lies above.
            tie: 2f32.powi(-24) * 1.5,
        };
        let results = run(device, &PROBE, &params, 4)?;
        let subnormal = (f32::MIN_POSITIVE / 2.0).to_bits();
        let mut facts = Self {
            fma_is_fused: f32::from_bits(results[0]) == 2f32.powi(-24),
            keeps_subnormals: results[1] == subnormal && results[2] == subnormal,
            rounds_to_nearest: f32::from_bits(results[3]) == 1.0 + f32::EPSILON,
            ..Self::default()
        };
        let usable = device.wgpu().features().contains(wgpu::Features::SUBGROUP) && !options.without_subgroups;
        if usable {
            let lanes = run(device, &LANES, &params, 4 * THREADS as usize)?;
            facts.subgroup_size = lanes[1];
            facts.has_subgroups =
                lanes.as_chunks::<4>().0.iter().zip(0..).all(|(&[lane, size, beside, fifth], index)| {
                    let size_fits = size >= GROUP && size.is_power_of_two();
                    size_fits && lane == index % size && beside == index ^ 7 && fifth == (index & !7 | 5)
                });
        }
        Ok(facts)
    }
}

fn run(device: &Device, source: &KernelSource<'_>, params: &ProbeParams, words: usize) -> Result<Vec<u32>> {
    let pipeline = device.pipeline(source, &[("THREADS", THREADS)])?;
    let results = device.buffer("probe", 4 * words as u64)?;
    let mut batch = Batch::new(device);
    batch.dispatch(&pipeline, &[(&results).into()], params, 1)?;
    let read = batch.finish()?.run(&[Binding::part(&results, 0..4 * words as u64)])?;
    Ok(read[0].chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
}
