//! Compiles ggml's CPU back end from the source that the package llama-cpp-sys-2 carries, with CMake.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=ggml");
    println!("cargo:rerun-if-changed=Cargo.lock");
    let ggml = source("llama-cpp-sys-2")?.join("llama.cpp/ggml");
    // ggml compiles for the machine that it is built on, or for AVX2 and FMA where it is told not to.
    let native = if std::env::var_os("CARGO_FEATURE_AVX2").is_none() { "ON" } else { "OFF" };
    let out = cmake::Config::new("ggml")
        .define("GGML_SOURCE", ggml)
        .define("GGML_NATIVE", native)
        .profile("Release")
        .build_target("ggml_bench")
        .build();
    println!("cargo:rustc-link-search=native={}", out.join("build/lib").display());
    for library in ["ggml_bench", "ggml-cpu", "ggml-base"] {
        println!("cargo:rustc-link-lib=static={library}");
    }
    println!("cargo:rustc-link-lib={}", if cfg!(target_os = "macos") { "c++" } else { "stdc++" });
    Ok(())
}

/// Where Cargo has unpacked a package of the lock file.
fn source(package: &str) -> Result<PathBuf, Box<dyn Error>> {
    let output = Command::new(std::env::var("CARGO")?)
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(std::env::var("CARGO_MANIFEST_DIR")?)
        .output()?;
    if !output.status.success() {
        return Err(format!("`cargo metadata` failed: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().ok_or("`cargo metadata` names no packages")?;
    let manifest = packages.iter().find(|p| p["name"] == package).and_then(|p| p["manifest_path"].as_str());
    let manifest = manifest.ok_or_else(|| format!("`cargo metadata` does not have the package {package}"))?;
    Ok(Path::new(manifest).parent().ok_or("a manifest without a folder")?.to_path_buf())
}
