//! Lists the WGSL files of `src/shaders`, so that a new one is compiled into the program by being there.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let folder = Path::new("src/shaders");
    let mut names = [names(folder, "")?, names(folder, "formats/")?].concat();
    names.sort();
    let mut list = String::from("&[\n");
    for name in names {
        let path = format!("concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/src/shaders/{name}\")");
        let _ = writeln!(list, "File {{ name: \"{name}\", text: include_str!({path}) }},");
    }
    list.push(']');
    println!("cargo:rerun-if-changed=src/shaders");
    println!("cargo:rerun-if-changed=build.rs");
    let out = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    fs::write(out.join("shaders.rs"), list)
}

/// Names of the WGSL files in a folder, as `#include` gives them.
fn names(folder: &Path, under: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder.join(under))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".wgsl") {
            names.push(format!("{under}{name}"));
        }
    }
    Ok(names)
}
