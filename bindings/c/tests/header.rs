//! The hand-written headers against the Rust declarations: functions, structs, constants, in order and in type.
//!
//! Both sides are read as text and put into one form. Rust lays `repr(C)` structs out as C does, so that equal fields mean
//! equal offsets.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The text between two marks, and what follows.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<(&'a str, &'a str)> {
    let from = text.find(start)? + start.len();
    let len = text[from..].find(end)?;
    Some((&text[from..from + len], &text[from + len..]))
}

fn without_comments(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    while let Some(start) = rest.find("/*") {
        kept += &rest[..start];
        let end = rest[start..].find("*/").expect("a comment ends");
        rest = &rest[start + end + 2..];
    }
    kept + rest
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What a side declares, by name.
#[derive(Debug, Default, PartialEq)]
struct Declared {
    /// Result, then name and type of each parameter.
    functions: BTreeMap<String, Vec<String>>,
    /// Name and type of each field.
    structs: BTreeMap<String, Vec<String>>,
    constants: BTreeMap<String, i64>,
    /// What a name of a type stands for.
    aliases: BTreeMap<String, String>,
}

/// `const char *name` or `int64_t shape[5]` as `name: *const c_char` and `shape: [i64; 5]`.
fn c_declaration(text: &str) -> String {
    let text = one_line(text);
    let split = text.rfind(|c: char| !(c.is_alphanumeric() || c == '_' || c == '[' || c == ']')).expect("a name");
    let (kind, name) = (text[..=split].trim(), text[split + 1..].trim());
    let (name, size) = match name.split_once('[') {
        Some((name, size)) => (name, Some(size.trim_end_matches(']').replace("UNDRAFT_MAX_NDIM", "5"))),
        None => (name, None),
    };
    let kind = c_type(kind);
    match size {
        Some(size) => format!("{name}: [{kind}; {size}]"),
        None => format!("{name}: {kind}"),
    }
}

fn c_type(text: &str) -> String {
    let stars = text.matches('*').count();
    let base = text.replace('*', " ");
    let is_const = base.split_whitespace().any(|word| word == "const");
    let base: Vec<_> = base.split_whitespace().filter(|&word| word != "const").collect();
    let base = match base.join(" ").as_str() {
        "int32_t" => "i32".to_owned(),
        "int64_t" => "i64".to_owned(),
        "uint32_t" => "u32".to_owned(),
        "size_t" => "usize".to_owned(),
        "float" => "f32".to_owned(),
        "char" => "c_char".to_owned(),
        "void" => "c_void".to_owned(),
        other => other.to_owned(),
    };
    // A const belongs to what the innermost pointer leads to.
    (0..stars).fold(base, |kind, i| format!("*{} {kind}", if i == 0 && is_const { "const" } else { "mut" }))
}

/// Top-level statements without comments, preprocessor lines, what is for C++ alone, and bodies of functions.
fn statements(header: &str) -> Vec<String> {
    let mut code = String::new();
    let mut is_for_cpp = false;
    for line in header.lines() {
        is_for_cpp |= line == "#ifdef __cplusplus";
        if !is_for_cpp && !line.starts_with('#') {
            code += line;
            code.push('\n');
        }
        is_for_cpp &= line != "#endif";
    }
    let (mut statements, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        let is_inline = code[start..].trim_start().starts_with("static inline");
        if depth == 0 && c == if is_inline { '}' } else { ';' } {
            if !is_inline {
                statements.push(one_line(&code[start..at]));
            }
            start = at + 1;
        }
    }
    statements
}

fn of_headers() -> Declared {
    let mut declared = Declared::default();
    for header in ["include/undraft.h", "include/undraft_ops.h"] {
        let text = without_comments(&read(header));
        for statement in statements(&text) {
            if let Some(constants) = statement.strip_prefix("enum {").and_then(|rest| rest.strip_suffix('}')) {
                for constant in constants.split(',') {
                    let (name, value) = constant.split_once('=').expect("a value");
                    declared.constants.insert(name.trim().to_owned(), value.trim().parse().expect("a number"));
                }
            } else if let Some(rest) = statement.strip_prefix("typedef struct ") {
                if let Some((_, rest)) = rest.split_once('{') {
                    let (fields, name) = rest.split_once('}').expect("the end of a struct");
                    let fields = fields.split(';').map(str::trim).filter(|f| !f.is_empty()).map(c_declaration);
                    declared.structs.insert(name.trim().to_owned(), fields.collect());
                }
            } else if let Some(alias) = statement.strip_prefix("typedef ") {
                let (kind, name) = alias.rsplit_once(' ').expect("a type and a name");
                declared.aliases.insert(name.to_owned(), c_type(kind));
            } else {
                let (head, parameters) = statement.split_once('(').unwrap_or_else(|| panic!("{statement}"));
                let name = &head[head.rfind("undraft_").expect("a name")..];
                let result = match c_type(&head[..head.len() - name.len()]) {
                    kind if kind == "c_void" => "()".to_owned(),
                    kind => kind,
                };
                let parameters = parameters.strip_suffix(')').expect("the end of the parameters").split(',');
                let parameters = parameters.map(str::trim).filter(|&p| p != "void").map(c_declaration);
                declared.functions.insert(name.to_owned(), std::iter::once(result).chain(parameters).collect());
            }
        }
        for define in text.lines().filter_map(|line| line.strip_prefix("#define ")) {
            if let Some((name, value)) = define.split_once(' ') {
                let value = value.trim().trim_matches(|c| c == '(' || c == ')');
                declared.constants.insert(name.to_owned(), value.parse().expect("a number"));
            }
        }
    }
    declared
}

fn of_rust() -> Declared {
    let mut declared = Declared::default();
    let mut files: Vec<_> = ["src", "src/ops"]
        .iter()
        .flat_map(|dir| fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(dir)).expect("a folder"))
        .map(|entry| entry.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|e| e == "rs"))
        .collect();
    files.sort();
    for file in files {
        let text = fs::read_to_string(&file).expect("a file");
        let code: String =
            text.lines().filter(|line| !line.trim_start().starts_with("//")).map(|l| format!("{l}\n")).collect();
        let mut rest = &code[..];
        while let Some((body, after)) = between(rest, "extern \"C\" fn ", "{\n") {
            let (name, body) = body.split_once('(').expect("parameters");
            let (parameters, result) = body.rsplit_once(')').expect("parameters");
            let result = result.trim().strip_prefix("->").map_or("()", str::trim);
            let parameters = parameters.split(',').map(one_line).filter(|p| !p.is_empty());
            declared.functions.insert(name.to_owned(), std::iter::once(result.to_owned()).chain(parameters).collect());
            rest = after;
        }
        let mut rest = &code[..];
        while let Some((body, after)) = between(rest, "#[repr(C)]", "\n}") {
            let (head, fields) = body.split_once("{\n").expect("fields");
            let name = head.rsplit("pub struct ").next().expect("a name").trim().to_owned();
            let fields = fields.split(",\n").flat_map(|f| f.trim().strip_prefix("pub ").map(one_line));
            let fields = fields.map(|f| f.trim_end_matches(',').replace("UNDRAFT_MAX_NDIM", "5")).collect();
            declared.structs.insert(name, fields);
            rest = after;
        }
        for line in code.lines() {
            let line = line.trim();
            let alias = line.strip_prefix("pub type ").and_then(|rest| rest.strip_suffix(';'));
            if let Some((name, kind)) =
                alias.and_then(|alias| alias.split_once(" = ")).filter(|(name, _)| !name.starts_with('$'))
            {
                declared.aliases.insert(name.to_owned(), kind.to_owned());
            }
            // `NAME, read -> Type {` in the macro that declares choices, all of which are u32.
            if let Some((name, _)) = line.split_once(", ")
                && line.ends_with('{')
                && line.contains(" -> ")
                && name.starts_with("undraft_")
            {
                declared.aliases.insert(name.to_owned(), "u32".to_owned());
            }
            // `pub const NAME: type = 1;`, or `NAME = 1 => ..` of a choice.
            let constant = match line.strip_prefix("pub const UNDRAFT_") {
                Some(rest) => rest.split_once(": ").map(|(name, rest)| (name, rest.split('=').nth(1))),
                None => line.strip_prefix("UNDRAFT_").and_then(|rest| {
                    let (name, value) = rest.split_once(" = ")?;
                    Some((name, Some(value.split_once(" =>")?.0)))
                }),
            };
            if let Some((name, Some(value))) = constant {
                let value = value.trim().trim_end_matches(';').parse().unwrap_or_else(|_| panic!("{line}"));
                declared.constants.insert(format!("UNDRAFT_{name}"), value);
            }
        }
    }
    declared
}

fn differences<T: PartialEq + std::fmt::Debug>(
    what: &str,
    c: &BTreeMap<String, T>,
    rust: &BTreeMap<String, T>,
) -> Vec<String> {
    let names: std::collections::BTreeSet<_> = c.keys().chain(rust.keys()).collect();
    let differs = names.into_iter().filter(|&name| c.get(name) != rust.get(name));
    differs.map(|name| format!("{what} {name}:\n  header {:?}\n  Rust   {:?}", c.get(name), rust.get(name))).collect()
}

#[test]
fn headers_declare_what_the_library_has() {
    let (c, rust) = (of_headers(), of_rust());
    // A reader that finds nothing would agree with another that does.
    assert!(rust.functions.len() >= 45, "{} functions", rust.functions.len());
    assert!(rust.structs.len() >= 18, "{} structs", rust.structs.len());
    assert!(rust.constants.len() >= 50, "{} constants", rust.constants.len());
    let mut found = differences("function", &c.functions, &rust.functions);
    found.extend(differences("struct", &c.structs, &rust.structs));
    found.extend(differences("type", &c.aliases, &rust.aliases));
    found.extend(differences("constant", &c.constants, &rust.constants));
    assert!(found.is_empty(), "{}", found.join("\n"));
}
