//! What the recurrent and the chunked form of the delta rule are both given.

use undraft_core::ops::DeltaRuleInputs;
use undraft_core::{Beta, Decay};

use crate::device::Input;
use crate::driver::{DeviceBuffer, Stream};
use crate::error::Result;
use crate::raw::DecayForm;

/// Inputs in device memory.
pub(crate) struct DeltaInputs {
    pub(crate) q: Input,
    pub(crate) k: Input,
    pub(crate) v: Input,
    pub(crate) decay_form: DecayForm,
    pub(crate) decay: DeviceBuffer<f32>,
    /// Empty unless the decay comes as a gate; `dt_bias` too.
    pub(crate) a_log: DeviceBuffer<f32>,
    pub(crate) dt_bias: DeviceBuffer<f32>,
    pub(crate) beta: DeviceBuffer<f32>,
    pub(crate) beta_is_logit: bool,
    pub(crate) cu_seqlens: DeviceBuffer<i32>,
    pub(crate) state_indices: DeviceBuffer<i32>,
}

impl DeltaInputs {
    pub(crate) fn upload(stream: &Stream, inputs: &DeltaRuleInputs<'_>) -> Result<Self> {
        let (decay_form, decay, a_log, dt_bias): (_, _, &[f32], &[f32]) = match inputs.decay {
            Decay::Log(g) => (DecayForm::Log, g, &[], &[]),
            Decay::Linear(alpha) => (DecayForm::Linear, alpha, &[], &[]),
            Decay::NegLog(x) => (DecayForm::NegLog, x, &[], &[]),
            Decay::Gate { a, a_log, dt_bias } => (DecayForm::Gate, a, a_log, dt_bias),
        };
        let (beta, beta_is_logit) = match inputs.beta {
            Beta::Value(beta) => (beta, false),
            Beta::Logit(b) => (b, true),
        };
        Ok(Self {
            q: Input::upload(stream, &inputs.q)?,
            k: Input::upload(stream, &inputs.k)?,
            v: Input::upload(stream, &inputs.v)?,
            decay_form,
            decay: DeviceBuffer::from_slice(stream, decay)?,
            a_log: DeviceBuffer::from_slice(stream, a_log)?,
            dt_bias: DeviceBuffer::from_slice(stream, dt_bias)?,
            beta: DeviceBuffer::from_slice(stream, beta)?,
            beta_is_logit,
            cu_seqlens: DeviceBuffer::from_slice(stream, inputs.cu_seqlens)?,
            state_indices: DeviceBuffer::from_slice(stream, inputs.state_indices)?,
        })
    }
}

/// Sets the fields of a launch's parameters that tell of [`DeltaInputs`] and of how they are meant.
macro_rules! set_delta_inputs {
    ($params:ident, $device:ident, $inputs:ident) => {
        ($params.q, $params.q_stride, $params.q_dtype) = $device.q.tensor();
        ($params.k, $params.k_stride, $params.k_dtype) = $device.k.tensor();
        ($params.v, $params.v_stride, $params.v_dtype) = $device.v.tensor();
        ($params.decay_form, $params.decay) = ($device.decay_form, $device.decay.address());
        ($params.a_log, $params.dt_bias) = ($device.a_log.address(), $device.dt_bias.address());
        ($params.beta, $params.beta_is_logit) = ($device.beta.address(), $device.beta_is_logit.into());
        $params.cu_seqlens = $device.cu_seqlens.address();
        $params.state_indices = $device.state_indices.address();
        $params.scale = $inputs.scale;
        $params.tiled = ($inputs.head_map == undraft_core::HeadMap::Tiled).into();
        $params.round_io = ($inputs.rounding == undraft_core::Rounding::Io).into();
        if let undraft_core::QkNorm::L2Norm { eps } = $inputs.qk_norm {
            ($params.l2_norm, $params.eps) = ($crate::raw::Switch::On, eps);
        }
    };
}
pub(crate) use set_delta_inputs;
