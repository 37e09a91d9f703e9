//! The parameters of the operations: one list for each says what torch's schema is, what is read and what is written.

use std::ops::Range;

use undraft::cuda::raw::{CUstream, Launcher};

use crate::error::{Error, Result};
use crate::tensor::{Device, Tensor};

/// What a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tensor that is read.
    In,
    /// A tensor that is written, and perhaps read.
    Out,
    /// As `In`, or none.
    MaybeIn,
    /// As `Out`, or none.
    MaybeOut,
    /// A number.
    Int,
    /// A number.
    Float,
    /// Yes or no.
    Bool,
}

/// A parameter.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: &'static str,
}

/// An operation as torch and the functions on arrays call it.
#[derive(Debug)]
pub struct Op {
    /// Name.
    pub name: &'static str,
    /// Parameters, in order.
    pub params: &'static [Param],
    /// Reads the parameters, checks them and runs.
    pub run: fn(&mut Values<'_>) -> Result<()>,
}

impl Op {
    /// torch's schema: what is written has an alias, and nothing is returned.
    pub fn schema(&self) -> String {
        let mut aliases = 'a'..='z';
        let mut alias = || aliases.next().unwrap_or('z');
        let params: Vec<String> = self
            .params
            .iter()
            .map(|Param { kind, name }| match kind {
                Kind::In => format!("Tensor {name}"),
                Kind::Out => format!("Tensor({}!) {name}", alias()),
                Kind::MaybeIn => format!("Tensor? {name}"),
                Kind::MaybeOut => format!("Tensor({}!)? {name}", alias()),
                Kind::Int => format!("int {name}"),
                Kind::Float => format!("float {name}"),
                Kind::Bool => format!("bool {name}"),
            })
            .collect();
        format!("{}({}) -> ()", self.name, params.join(", "))
    }
}

/// Whoever calls: what the 64 bits of a tensor are, and what a CUDA device offers.
pub trait Caller {
    /// A tensor.
    ///
    /// # Errors
    /// If the caller's library fails, or the tensor is none that can be looked at.
    fn tensor(&mut self, arg: &'static str, bits: u64) -> Result<Tensor>;
    /// The bits of an optional tensor.
    fn optional(&mut self, bits: u64) -> Option<u64>;
    /// Launcher and current stream of a CUDA device.
    ///
    /// # Errors
    /// If there is none, or its kernels cannot be loaded now.
    fn cuda(&mut self, index: i32) -> Result<(Launcher, CUstream)>;
    /// Device memory that lives until the work of this call is done, aligned to 256 bytes.
    ///
    /// # Errors
    /// If there is none.
    fn scratch(&mut self, index: i32, bytes: usize) -> Result<u64>;
}

/// The memory of a tensor that was read.
struct Seen {
    arg: &'static str,
    device: Device,
    bytes: Range<usize>,
    is_written: bool,
}

/// The values of a call, read in order.
pub struct Values<'a> {
    bits: std::slice::Iter<'a, u64>,
    pub(crate) caller: &'a mut dyn Caller,
    seen: Vec<Seen>,
}

impl<'a> Values<'a> {
    /// Values to read.
    pub fn new(bits: &'a [u64], caller: &'a mut dyn Caller) -> Self {
        Self { seen: Vec::with_capacity(bits.len()), bits: bits.iter(), caller }
    }
    fn next(&mut self, name: &'static str) -> Result<u64> {
        self.bits.next().copied().ok_or_else(|| Error::Internal { what: format!("no value for `{name}`") })
    }
    fn see(&mut self, arg: &'static str, bits: u64, is_written: bool) -> Result<Tensor> {
        let tensor = self.caller.tensor(arg, bits)?;
        tensor.check_alignment(tensor.element_size.max(1))?;
        if is_written {
            tensor.check_own_elements()?;
        }
        self.seen.push(Seen { arg, device: tensor.device, bytes: tensor.bytes(), is_written });
        Ok(tensor)
    }
    pub(crate) fn tensor(&mut self, name: &'static str, written: bool) -> Result<Tensor> {
        let bits = self.next(name)?;
        self.see(name, bits, written)
    }
    pub(crate) fn optional(&mut self, name: &'static str, written: bool) -> Result<Option<Tensor>> {
        let bits = self.next(name)?;
        match self.caller.optional(bits) {
            Some(bits) => self.see(name, bits, written).map(Some),
            None => Ok(None),
        }
    }
    pub(crate) fn int(&mut self, name: &'static str) -> Result<i64> {
        Ok(self.next(name)? as i64)
    }
    pub(crate) fn float(&mut self, name: &'static str) -> Result<f64> {
        Ok(f64::from_bits(self.next(name)?))
    }
    pub(crate) fn bool(&mut self, name: &'static str) -> Result<bool> {
        Ok(self.next(name)? & 0xff != 0)
    }

    /// Checks that all tensors lie on one device, and that what is written shares no memory with anything else.
    pub(crate) fn check_memory(&self) -> Result<Device> {
        let Some(first) = self.seen.first() else { return Ok(Device::Cpu) };
        let expected = first.device;
        if expected == Device::Other {
            let (arg, got) = (first.arg, first.device);
            return Err(Error::UnsupportedDevice { arg, got, expected: "a CPU or CUDA tensor" });
        }
        if let Some(&Seen { arg, device: got, .. }) = self.seen.iter().find(|seen| seen.device != expected) {
            return Err(Error::Device { arg, got, of_arg: first.arg, expected });
        }
        for (i, Seen { arg, bytes, .. }) in self.seen.iter().enumerate().filter(|(_, seen)| seen.is_written) {
            let overlaps = |other: &Seen| bytes.start < other.bytes.end && other.bytes.start < bytes.end;
            if let Some((_, other)) = self.seen.iter().enumerate().find(|&(j, other)| i != j && overlaps(other)) {
                return Err(Error::Overlap { arg, other: other.arg });
            }
        }
        Ok(expected)
    }
}

/// A struct of an operation's arguments from a list of its parameters; `read` also makes the checks of memory.
macro_rules! op_args {
    ($name:ident { $($kind:ident $field:ident),* $(,)? }) => {
        #[derive(Debug)]
        #[allow(non_snake_case)]
        pub(crate) struct $name { $(pub(crate) $field: $crate::args::op_args!(@type $kind)),* }
        impl $name {
            pub(crate) const PARAMS: &'static [$crate::args::Param] =
                &[$($crate::args::Param { kind: $crate::args::Kind::$kind, name: stringify!($field) }),*];
            pub(crate) fn read(
                values: &mut $crate::args::Values<'_>,
            ) -> $crate::error::Result<(Self, $crate::tensor::Device)> {
                let args = Self { $($field: $crate::args::op_args!(@read $kind values $field)?),* };
                Ok((args, values.check_memory()?))
            }
        }
    };
    (@type In) => { $crate::tensor::Tensor };
    (@type Out) => { $crate::tensor::Tensor };
    (@type MaybeIn) => { Option<$crate::tensor::Tensor> };
    (@type MaybeOut) => { Option<$crate::tensor::Tensor> };
    (@type Int) => { i64 };
    (@type Float) => { f64 };
    (@type Bool) => { bool };
    (@read In $values:ident $field:ident) => { $values.tensor(stringify!($field), false) };
    (@read Out $values:ident $field:ident) => { $values.tensor(stringify!($field), true) };
    (@read MaybeIn $values:ident $field:ident) => { $values.optional(stringify!($field), false) };
    (@read MaybeOut $values:ident $field:ident) => { $values.optional(stringify!($field), true) };
    (@read Int $values:ident $field:ident) => { $values.int(stringify!($field)) };
    (@read Float $values:ident $field:ident) => { $values.float(stringify!($field)) };
    (@read Bool $values:ident $field:ident) => { $values.bool(stringify!($field)) };
}
pub(crate) use op_args;
