//! Kernels compiled when a program runs, for head sizes that the fat binary has none for.

use std::ffi::CString;

use cudarc::nvrtc::{result, sys};

use crate::error::{CudaError, Result};

/// The sources in the order of their includes.
const SOURCES: [&str; 6] = [
    include_str!("../kernels/prelude.cuh"),
    include_str!("../kernels/recurrent.cuh"),
    include_str!("../kernels/recurrent_any.cuh"),
    include_str!("../kernels/recurrent_short.cuh"),
    include_str!("../kernels/recurrent_kernels.cuh"),
    include_str!("../kernels/recurrent_for.cuh"),
];

/// The recurrence's kernels for heads of `head_k_dim`, one text without includes.
pub(crate) fn source(head_k_dim: usize) -> String {
    let mut text = format!("#define UNDRAFT_K {head_k_dim}\n");
    for line in SOURCES.iter().flat_map(|source| source.lines()) {
        if !line.starts_with("#include") && !line.starts_with("#pragma once") {
            text += line;
            text.push('\n');
        }
    }
    text
}

/// The newest target of NVRTC that is not newer than the device, and what the device is.
fn target((major, minor): (i32, i32)) -> Result<String> {
    let device = major * 10 + minor;
    let mut count = 0;
    // SAFETY: the library is there; it writes one number.
    unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) }.result().map_err(failed("nvrtcGetNumSupportedArchs"))?;
    let mut targets = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: the library writes as many numbers as it has just said.
    unsafe { sys::nvrtcGetSupportedArchs(targets.as_mut_ptr()) }.result().map_err(failed("nvrtcGetSupportedArchs"))?;
    let target = targets.into_iter().filter(|&t| t <= device).max();
    target.map(|t| format!("--gpu-architecture=compute_{t}")).ok_or(CudaError::Compiler {
        call: "nvrtcGetSupportedArchs",
        why: format!("no target for compute capability {major}.{minor}"),
    })
}

fn failed(call: &'static str) -> impl FnOnce(result::NvrtcError) -> CudaError {
    move |e| CudaError::Compiler { call, why: format!("{:?}", e.0) }
}

/// Compiles CUDA C++ to PTX for a device, without fast-math and without fusing but that of `__fmaf_rn`.
///
/// # Errors
/// [`CudaError::NoCompiler`] without NVRTC, [`CudaError::Compiler`] with what it says.
pub(crate) fn compile(source: &str, capability: (i32, i32)) -> Result<CString> {
    // SAFETY: loading the library runs its initialisers, as every program with NVRTC does.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoCompiler);
    }
    let options = [target(capability)?, "--std=c++17".into(), "--fmad=false".into()];
    let source =
        CString::new(source).map_err(|e| CudaError::Compiler { call: "nvrtcCreateProgram", why: e.to_string() })?;
    let program = result::create_program(&source, None).map_err(failed("nvrtcCreateProgram"))?;
    let text = |chars: Vec<std::ffi::c_char>| -> Vec<u8> {
        chars.into_iter().map(|c| c.cast_unsigned()).take_while(|&c| c != 0).collect()
    };
    // SAFETY: the program was made above and is destroyed below; options are text.
    let ptx = unsafe {
        match result::compile_program(program, &options) {
            Ok(()) => result::get_ptx(program).map(text).map_err(failed("nvrtcGetPTX")),
            Err(e) => {
                let log = result::get_program_log(program).map(text).unwrap_or_default();
                Err(CudaError::Compiler {
                    call: "nvrtcCompileProgram",
                    why: format!("{:?}: {}", e.0, String::from_utf8_lossy(&log)),
                })
            }
        }
    };
    // SAFETY: made above, used by nobody else.
    unsafe { result::destroy_program(program) }.map_err(failed("nvrtcDestroyProgram"))?;
    CString::new(ptx?).map_err(|e| CudaError::Compiler { call: "nvrtcGetPTX", why: e.to_string() })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_source_is_whole_and_includes_nothing() {
        let source = super::source(96);
        assert!(source.starts_with("#define UNDRAFT_K 96\n"));
        assert!(!source.contains("#include"), "an include that does not begin its line");
        for part in ["struct Recurrent {", "struct Short :", "struct Any :", "SHORT(UNDRAFT_K, 1, false, false, true"] {
            assert_eq!(source.matches(part).count(), 1, "{part}");
        }
    }
}
