//! Compiles the CUDA and the Metal kernels with the C++ compiler of this machine; the latter in `build/metal.rs`.
//!
//! Every `.cu` file of the folders below becomes one translation unit: `cpp/cuda.h`, the file as it is, and a table of its
//! kernels. Their names are read from the preprocessed source, so that those that a macro makes are found as well.

#[path = "build/metal.rs"]
mod metal;
#[path = "build/mutants.rs"]
mod mutants;
#[path = "../undraft-metal/src/sources.rs"]
#[allow(dead_code, missing_docs)]
mod sources;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The kernels of the back end, and those that only tests run.
const FOLDERS: [&str; 2] = ["../undraft-cuda/kernels", "kernels"];
/// Includes all others.
const ALL_IN_ONE: &str = "undraft.cu";
/// `address`: the Metal kernels are compiled for the address sanitizer, those of CUDA not at all (their checkers are NVIDIA's).
const SANITIZE: &str = "UNDRAFT_SANITIZE";
/// Bytes of dynamic shared memory that a kernel may have, and of a guard behind them.
const MOST_SHARED: usize = 232_448 + 256;

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rerun-if-changed={}", root.join("cpp").display());

    let mut files = Vec::new();
    let mut stems = Vec::new();
    let mut defined = BTreeSet::new();
    for folder in FOLDERS.into_iter().filter(|_| !is_sanitized()) {
        let folder = root.join(folder);
        println!("cargo::rerun-if-changed={}", folder.display());
        for source in sources(&folder) {
            let stem = source.file_stem().and_then(|s| s.to_str()).expect("a kernel's file name is text").to_owned();
            let unit = out.join(format!("{stem}.cpp"));
            fs::write(&unit, translation_unit(&root, &source, &stem, &mut defined)).expect("OUT_DIR can be written");
            files.push(unit);
            stems.push(stem);
        }
    }
    let tables = out.join("tables.cpp");
    fs::write(&tables, table_of_tables(&stems)).expect("OUT_DIR can be written");
    files.push(tables);
    // Each calls what the next one holds.
    metal::compile(&root, &out);
    compiler(&root).files(files).compile("undraft_emulated_kernels");
    let mut engine = compiler(&root);
    if is_sanitized() {
        engine.define("LOCKSTEP_ADDRESS_SANITIZER", None);
        // Of the test programs of this package alone.
        println!("cargo::rustc-link-arg-tests=-lasan");
    }
    engine.files(["cpp/lockstep.cpp", "cpp/pages.cpp"].map(|file| root.join(file))).compile("undraft_lockstep");
}

/// Whether the kernels run under the address sanitizer.
fn is_sanitized() -> bool {
    println!("cargo::rerun-if-env-changed={SANITIZE}");
    match env::var(SANITIZE).as_deref() {
        Ok("address") => true,
        Err(_) | Ok("") => false,
        Ok(other) => panic!("{SANITIZE} is `{other}`, expected `address` or nothing"),
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut sources: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a folder can be read to its end").path())
        .filter(|path| path.extension().is_some_and(|e| e == "cu") && !path.ends_with(ALL_IN_ONE))
        .collect();
    sources.sort();
    sources
}

fn compiler(root: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .include(root.join("cpp"))
        .include(root.join(FOLDERS[0]))
        // A multiplication and an addition are fused where the source says so.
        .flag("-ffp-contract=off")
        // Kernels look at one memory as several types; names of CUDA begin with underscores.
        .flag("-fno-strict-aliasing")
        .flag_if_supported("-fno-extern-tls-init")
        // A frame that is too large for a stack ends in the closed page below it.
        .flag_if_supported("-fstack-clash-protection")
        .flag("-ftls-model=initial-exec")
        .flag(format!("-ffile-prefix-map={}/=", root.display()))
        .warnings(false)
        .flag("-w");
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        build.flag("-mfma").flag("-mavx2");
    }
    build
}

/// The file with the table of its kernels. `defined` are the names of shared memory that another unit holds already.
fn translation_unit(root: &Path, source: &Path, stem: &str, defined: &mut BTreeSet<String>) -> String {
    let mut unit = format!("#include \"cuda.h\"\n#include \"{}\"\n", source.display());
    let probe = source_of_env("OUT_DIR").join(format!("{stem}.probe.cpp"));
    fs::write(&probe, &unit).expect("OUT_DIR can be written");
    let expanded = compiler(root)
        .file(&probe)
        .define("__global__", "__lockstep_kernel__")
        .define("__shared__", "__lockstep_shared__")
        .expand();
    let expanded = String::from_utf8_lossy(&expanded);

    let shared: BTreeSet<(String, String)> = expanded
        .split("extern __lockstep_shared__")
        .skip(1)
        .filter_map(|rest| {
            let declaration = rest.split(';').next()?.trim();
            let (head, _) = declaration.split_once('[')?;
            let name = head.trim_end().rsplit(|c: char| !is_word(c)).next()?;
            Some((name.to_owned(), head.trim_end().to_owned()))
        })
        .collect();
    assert!(shared.len() <= 1, "{}: dynamic shared memory with several names or types", source.display());
    let mut of_shared = "nullptr, 0".to_owned();
    if let Some((name, head)) = shared.first() {
        let _ = writeln!(unit, "extern thread_local {head}[];");
        if defined.insert(name.clone()) {
            let _ = writeln!(unit, "thread_local {head}[{MOST_SHARED} / sizeof(*{name})];");
        }
        let _ = writeln!(unit, "static unsigned char* shared_of_thread() {{ return (unsigned char*){name}; }}");
        of_shared = format!("shared_of_thread, {MOST_SHARED}");
    }
    let _ = writeln!(unit, "extern \"C\" const LockstepKernel lockstep_table_{stem}[] = {{");
    for name in kernels(&expanded) {
        let entry = format!("LockstepEntry<&{name}>");
        let _ = writeln!(unit, "    {{\"{name}\", {entry}::bytes, {entry}::run, {of_shared}}},");
    }
    unit + "    {nullptr, 0, nullptr, nullptr, 0},\n};\n"
}

fn source_of_env(name: &str) -> PathBuf {
    PathBuf::from(env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}")))
}

/// Names of the kernels with C linkage: `extern "C" __global__ void name(const P p)`.
fn kernels(expanded: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut before = "";
    for part in expanded.split("__lockstep_kernel__") {
        if before.trim_end().ends_with("extern \"C\"")
            && let Some((head, _)) = part.split_once('(')
        {
            names.extend(head.trim_end().rsplit(|c: char| !is_word(c)).next());
        }
        before = part;
    }
    names
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn table_of_tables(stems: &[String]) -> String {
    let mut unit = "#include \"lockstep.h\"\n".to_owned();
    for stem in stems {
        let _ = writeln!(unit, "extern \"C\" const LockstepKernel lockstep_table_{stem}[];");
    }
    unit += "extern \"C\" const LockstepKernel* const lockstep_tables[] = {\n";
    for stem in stems {
        let _ = writeln!(unit, "    lockstep_table_{stem},");
    }
    unit + "    nullptr,\n};\n"
}
