//! Names the shared library as it is installed, `libundraft.so.0.1`: before 1.0 a minor version may break programs.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let var = |name: &str| env::var(name).unwrap_or_default();
    let (major, minor) = (var("CARGO_PKG_VERSION_MAJOR"), var("CARGO_PKG_VERSION_MINOR"));
    let soversion = if major == "0" { format!("0.{minor}") } else { major };
    match (var("CARGO_CFG_TARGET_FAMILY").as_str(), var("CARGO_CFG_TARGET_VENDOR").as_str()) {
        ("unix", "apple") => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libundraft.{soversion}.dylib");
        }
        ("unix", _) => println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libundraft.so.{soversion}"),
        _ => {}
    }
}
