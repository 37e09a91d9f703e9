//! The Metal kernels: every library as the one text that Apple's compiler gets, behind `cpp/metal.h`, with a table of its kernels.
//!
//! Units lie in unnamed namespaces, since they share names. Arguments of a kernel are read from the preprocessed source: their
//! attributes say where they come from.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::{compiler, is_sanitized, is_word};
use crate::{mutants, sources};

/// Attributes, as in `MetalAttribute` of `cpp/metal.h`.
const ATTRIBUTES: [&str; 10] = [
    "buffer",
    "threadgroup_memory",
    "thread_position_in_threadgroup",
    "thread_position_in_grid",
    "threadgroup_position_in_grid",
    "threadgroups_per_grid",
    "threads_per_threadgroup",
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
];

pub(crate) fn compile(root: &Path, out: &Path) {
    let kernels = root.join("../undraft-metal/kernels");
    for path in [&kernels, &root.join("../undraft-metal/src/sources.rs"), &root.join("build")] {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let mut texts: Vec<(String, String)> =
        sources::ALL.iter().map(|library| (library.name.to_owned(), library.source())).collect();
    let (recurrence, decode) = (sources::FUSED_RECURRENT_GATED_DELTA_RULE, sources::GATED_DELTA_NET_DECODE);
    let library = |name: &str| {
        let found = sources::ALL.iter().find(|library| library.name == name);
        found.unwrap_or_else(|| panic!("mutants: there is no library {name}")).source()
    };
    texts.extend(mutants::texts(&recurrence.source(), &decode.source(), library));
    texts.sort();

    let mut files = vec![root.join("cpp/metal.cpp")];
    let mut tables = "#include \"lockstep.h\"\n".to_owned();
    let mut list = String::new();
    for (stem, text) in &texts {
        let file = out.join(format!("metal_{stem}.cpp"));
        fs::write(&file, unit(root, out, stem, text)).expect("OUT_DIR can be written");
        files.push(file);
        let _ = writeln!(tables, "extern \"C\" const LockstepKernel lockstep_metal_table_{stem}[];");
        let _ = writeln!(list, "    lockstep_metal_table_{stem},");
    }
    let file = out.join("metal_tables.cpp");
    let _ = writeln!(
        tables,
        "extern \"C\" const LockstepKernel* const lockstep_metal_tables[] = {{\n{list}    nullptr,\n}};"
    );
    fs::write(&file, tables).expect("OUT_DIR can be written");
    files.push(file);
    metal_compiler(root).files(files).compile("undraft_emulated_metal_kernels");
}

fn metal_compiler(root: &Path) -> cc::Build {
    let mut build = compiler(root);
    build.include(root.join("cpp/metal"));
    // What the language leaves undefined ends the launch with a message, vectors at places that are not theirs among it.
    build
        .flag_if_supported("-fsanitize=alignment,bounds,shift,signed-integer-overflow")
        .flag_if_supported("-fsanitize-undefined-trap-on-error");
    // Of kernels, not of the engine, which switches stacks.
    if is_sanitized() {
        build.flag("-fsanitize=address").flag("-fno-omit-frame-pointer").debug(true);
    }
    build
}

/// The text with the table of its kernels.
fn unit(root: &Path, out: &Path, stem: &str, text: &str) -> String {
    // The word is an address space as well, which vanishes.
    let text = text.replace("[[threadgroup(", "[[threadgroup_memory(");
    let mut unit = format!("#include \"metal.h\"\nnamespace {{\n{text}\n}}\n");
    let probe = out.join(format!("metal_{stem}.probe.cpp"));
    fs::write(&probe, &unit).expect("OUT_DIR can be written");
    let expanded = metal_compiler(root).file(&probe).define("LOCKSTEP_METAL_KERNEL", "__lockstep_kernel__").expand();
    let _ = writeln!(unit, "#undef thread\n#undef device\n#undef constant\n#undef threadgroup\n#undef kernel");
    let _ = writeln!(unit, "extern \"C\" const LockstepKernel lockstep_metal_table_{stem}[] = {{");
    let expanded = String::from_utf8_lossy(&expanded);
    for part in expanded.split("__lockstep_kernel__").skip(1) {
        let (head, rest) = part.split_once('(').expect("a kernel has arguments");
        let name = head.trim_end().rsplit(|c: char| !is_word(c)).next().unwrap_or_default();
        let places: Vec<String> =
            arguments(rest).into_iter().map(|argument| place(name, argument).to_string()).collect();
        let entry = format!("MetalEntry<&{name}, {}>::run", places.join(", "));
        let _ = writeln!(
            unit,
            "    {{\"{name}\", sizeof(MetalArguments), {entry}, lockstep_metal_shared, LOCKSTEP_METAL_SHARED}},"
        );
    }
    unit + "    {nullptr, 0, nullptr, nullptr, 0},\n};\n"
}

/// What stands between commas up to the bracket that closes the list.
fn arguments(list: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut found) = (0, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' if depth == 0 => {
                found.push(&list[begin..at]);
                return found;
            }
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    panic!("the arguments of a kernel have no end: {list}");
}

/// 256 times the attribute plus its index.
fn place(name: &str, argument: &str) -> usize {
    let attribute =
        argument.split_once("[[").and_then(|(_, rest)| rest.split_once("]]")).map(|(inner, _)| inner.trim());
    let attribute = attribute.unwrap_or_else(|| panic!("{name}: no attribute at `{argument}`"));
    let (word, index) = match attribute.split_once('(') {
        Some((word, index)) => (word.trim(), index.trim_end_matches(')').trim().parse().expect("an attribute's index")),
        None => (attribute, 0),
    };
    let number = ATTRIBUTES.iter().position(|&a| a == word);
    256 * number.unwrap_or_else(|| panic!("{name}: attribute `{word}` is not known to build/metal.rs")) + index
}
