//! Kernels as text: WGSL files, constants in front of them, and loops written out.

use crate::error::{Result, WgpuError};

/// How a kernel uses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads.
    Read,
    /// It reads and writes.
    ReadWrite,
}

/// A kernel before its constants are known.
///
/// The text that the device gets is: a `const` for each constant, also `FUSED` and `SUBGROUPS` (1 or 0, what the device was
/// found to have), the struct `Params` with the uniform `p` in it (`@group(1) @binding(0)`), then the files. The files declare the buffers of `buffers`, in order from binding 0 of group 0,
/// and an entry point `main` with a workgroup of `THREADS`.
#[derive(Clone, Copy, Debug)]
pub struct KernelSource<'a> {
    /// Name of the kernel in errors and profilers.
    pub name: &'static str,
    /// WGSL files, in order.
    pub files: &'a [&'static str],
    /// WGSL of the parameters: `WGSL` of a struct that [`params!`](crate::params) made.
    pub params: &'static str,
    /// The buffers.
    pub buffers: &'a [Access],
    /// Whether it calls `lane_xor`, which is through subgroups or workgroup memory, as the device has them.
    pub exchanges: bool,
    /// Whether marked loops are written out on devices with a fused fma alone: elsewhere `fused` is many instructions, and a
    /// kernel that calls it in such loops would become very long.
    pub is_large: bool,
}

/// Constants of a kernel, by their names in WGSL; `u32`.
pub type Constants = [(&'static str, u32)];

impl KernelSource<'_> {
    /// What tells a kernel with its constants from all others.
    pub(crate) fn key(&self, constants: &Constants) -> String {
        let mut key = self.name.to_owned();
        for (name, value) in constants {
            key += &format!(" {name}={value}");
        }
        key
    }

    /// The text for a device; with `unrolls_large`, marked loops of large kernels are written out as well.
    pub(crate) fn text(&self, constants: &Constants, unrolls_large: bool) -> Result<String> {
        let mut text = String::new();
        for (name, value) in constants {
            text += &format!("const {name} = {value}u;\n");
        }
        text += self.params;
        if self.exchanges {
            let has_subgroups = constants.contains(&("SUBGROUPS", 1));
            text += if has_subgroups {
                include_str!("../kernels/lanes_subgroup.wgsl")
            } else {
                include_str!("../kernels/lanes_workgroup.wgsl")
            };
        }
        for file in self.files {
            if unrolls_large || !self.is_large {
                let kernel = || self.key(constants);
                text += &unroll(file, constants).map_err(|why| WgpuError::Kernel { kernel: kernel(), why })?;
            } else {
                text += file;
            }
        }
        Ok(text)
    }
}

/// A line that ends like this begins a loop that is written out.
const MARK: &str = "{ // unroll\n";

/// Writes out every loop `for (var i = 0u; i < N; i++) { // unroll`, N a constant or a number, as N blocks in which `i` is a
/// constant: arrays that only such loops index can live in registers, whatever the driver thinks of loops. Such a loop has no
/// `break` or `continue`.
fn unroll(text: &str, constants: &Constants) -> Result<String, String> {
    let Some(mark) = text.find(MARK) else { return Ok(text.to_owned()) };
    let line = text[..mark].rfind('\n').map_or(0, |at| at + 1);
    let head = text[line..mark].trim();
    let bad = || format!("`{head}` is no loop that can be written out, expected `for (var i = 0u; i < N; i++)`");
    let inside = head.strip_prefix("for (var ").and_then(|rest| rest.strip_suffix(')')).ok_or_else(bad)?;
    let (name, rest) = inside.split_once(" = 0u; ").ok_or_else(bad)?;
    let bound = rest.strip_prefix(&format!("{name} < ")).and_then(|rest| rest.strip_suffix(&format!("; {name}++")));
    let bound = bound.ok_or_else(bad)?;
    let count = match constants.iter().find(|(constant, _)| *constant == bound) {
        Some(&(_, value)) => value,
        None => bound.trim_end_matches('u').parse().map_err(|_| bad())?,
    };
    let begin = mark + MARK.len();
    let length = length_of_block(&text[begin..]).ok_or_else(|| format!("the loop `{head}` has no end"))?;
    let body = unroll(&text[begin..begin + length], constants)?;
    let mut unrolled = text[..line].to_owned();
    for i in 0..count {
        unrolled += &format!("{{ const {name} = {i}u;\n{body}}}\n");
    }
    // Behind the brace that ends the loop.
    unrolled += &unroll(&text[begin + length + 1..], constants)?;
    Ok(unrolled)
}

/// Bytes up to the brace that closes a block whose opening brace lies before the text.
fn length_of_block(text: &str) -> Option<usize> {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// A field of a kernel's parameters: 32 bits.
pub trait Word: Copy {
    /// Its bits.
    fn word(self) -> u32;
}

impl Word for u32 {
    fn word(self) -> u32 {
        self
    }
}
impl Word for i32 {
    fn word(self) -> u32 {
        self as u32
    }
}
impl Word for f32 {
    fn word(self) -> u32 {
        self.to_bits()
    }
}

/// Parameters of a kernel as the device gets them.
pub trait Params {
    /// The struct in WGSL, and the uniform `p` of it.
    const WGSL: &'static str;
    /// The fields' bits, in order.
    fn words(&self) -> Vec<u32>;
}

/// Defines a kernel's parameters, a struct of `u32`, `i32` and `f32`, in Rust and in WGSL at once. In WGSL there is one field
/// more, `zero`, which is 0: a number that no compiler knows (see `kernels/prelude.wgsl`).
///
/// ```
/// use undraft_wgpu::Params;
/// undraft_wgpu::params! {
///     /// What a kernel that scales rows is told.
///     pub struct ScaleParams {
///         /// Rows.
///         pub num_rows: u32,
///         /// Factor.
///         pub scale: f32,
///     }
/// }
/// let params = ScaleParams { num_rows: 3, scale: 0.5 };
/// assert_eq!(params.words(), [3, 0.5f32.to_bits(), 0]);
/// assert!(ScaleParams::WGSL.contains("num_rows: u32,"));
/// ```
#[macro_export]
macro_rules! params {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$of_field:meta])* $field_vis:vis $field:ident: $type:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq)]
        $vis struct $name { $($(#[$of_field])* $field_vis $field: $type,)* }

        impl $crate::Params for $name {
            const WGSL: &'static str = concat!(
                "struct Params {\n",
                $(stringify!($field), ": ", stringify!($type), ",\n",)*
                "zero: u32,\n}\n@group(1) @binding(0) var<uniform> p: Params;\n",
            );
            fn words(&self) -> Vec<u32> {
                vec![$($crate::Word::word(self.$field),)* 0]
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_are_written_out() {
        let text = "a\n    for (var i = 0u; i < N; i++) { // unroll\n  if x { b[i] }\n    }\nc\n";
        let expected = "a\n{ const i = 0u;\n  if x { b[i] }\n    }\n{ const i = 1u;\n  if x { b[i] }\n    }\n\nc\n";
        assert_eq!(unroll(text, &[("N", 2)]).unwrap(), expected);
        assert_eq!(unroll("plain", &[]).unwrap(), "plain");
    }

    #[test]
    fn loops_in_loops_are_written_out() {
        let text =
            "for (var i = 0u; i < 2u; i++) { // unroll\nfor (var j = 0u; j < M; j++) { // unroll\nx(i, j)\n}\n}\n";
        let unrolled = unroll(text, &[("M", 3)]).unwrap();
        assert_eq!(unrolled.matches("x(i, j)").count(), 6);
        assert_eq!(unrolled.matches("const j = 2u;").count(), 2);
    }

    #[test]
    fn a_loop_that_cannot_be_is_an_error() {
        for head in ["for (var i = 1u; i < 2u; i++)", "while (true)", "for (var i = 0u; i < UNKNOWN; i++)"] {
            let error = unroll(&format!("{head} {{ // unroll\n}}\n"), &[]).unwrap_err();
            assert!(error.starts_with(&format!("`{head}` is no loop that can be written out")), "{error}");
        }
        assert!(unroll("for (var i = 0u; i < 2u; i++) { // unroll\nx", &[]).is_err());
    }
}
