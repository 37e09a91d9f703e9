//! The texts of the kernels stand on their own.

use undraft_metal::sources::ALL;

#[test]
fn a_library_is_one_text() {
    for library in ALL {
        let source = library.source();
        let includes: Vec<_> = source.lines().filter(|line| line.trim_start().starts_with("#include")).collect();
        assert_eq!(includes, ["#include <metal_stdlib>"], "{}", library.name);
        assert!(source.contains("#pragma METAL fp contract(off)"), "{}", library.name);
        assert!(source.contains("kernel void "), "{}", library.name);
    }
}

/// Only operations whose rounding the language fixes: no fast variants, no sum whose order is the GPU's own, no `half`.
#[test]
fn results_do_not_depend_on_the_gpu() {
    for library in ALL {
        for line in library.source().lines() {
            let code = line.split("//").next().unwrap_or_default();
            for word in ["fast::", "simd_sum", "metal::exp", "metal::log", "rsqrt", "half", "atomic", "bfloat"] {
                let found =
                    code.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).any(|w| w.contains(word));
                assert!(!found || code.contains("half_"), "{}: `{word}` in `{line}`", library.name);
            }
        }
    }
}
