//! Every `unsafe` block says why it is sound, and every unsafe function documents what its callers must guarantee: in
//! its own docs, in those of the impl around it, or in those of its module or folder if all functions require the same.

use super::Finding;
use super::source::File;

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let in_file = |file: &File| {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let parent = files.iter().find(|f| f.path == format!("{folder}/mod.rs"));
        let contract = module_says(file) || parent.is_some_and(module_says);
        in_file(file, contract)
    };
    files.iter().flat_map(in_file).collect()
}

/// True if the module's docs say what callers of its unsafe functions must guarantee.
fn module_says(file: &File) -> bool {
    file.comments.iter().any(|comment| comment.starts_with("//!") && comment.contains("# Safety"))
}

fn in_file(file: &File, contract: bool) -> Vec<Finding> {
    let silent = |(line, code): (usize, &str)| {
        let kind = unsafe_kind(code)?;
        let said = says_why(file, line) || (kind == "fn" && (contract || within_unsafe_impl(file, line)));
        let want = if kind == "fn" { "a doc section `# Safety`" } else { "a line `// SAFETY: …`" };
        (!said).then(|| Finding::new(file, line, format!("unsafe {kind} without {want} above it")))
    };
    file.code_lines().filter_map(silent).collect()
}

/// The kind of `unsafe` in a line of code, if any.
fn unsafe_kind(code: &str) -> Option<&'static str> {
    let at = code.match_indices("unsafe").map(|(at, _)| at).find(|at| {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        !code[..*at].ends_with(word) && !code[at + 6..].starts_with(word)
    })?;
    let after = code[at + 6..].trim_start();
    // A function pointer type, or an attribute like `#[unsafe(no_mangle)]`.
    if after.starts_with("fn(") || after.starts_with("extern \"\" fn(") || after.starts_with('(') {
        return None;
    }
    if after.starts_with("extern \"\" fn ") {
        return Some("fn");
    }
    let kinds = ["impl", "fn", "trait", "extern"];
    kinds.into_iter().find(|kind| after.starts_with(kind)).or(Some("block"))
}

/// True if a comment on the line, or right above its statement or item, says why.
fn says_why(file: &File, line: usize) -> bool {
    let comment = |i: usize| file.comments.get(i).map_or("", String::as_str);
    let why = |i: usize| comment(i).contains("SAFETY:") || comment(i).contains("# Safety");
    if why(line - 1) {
        return true;
    }
    for i in (0..line - 1).rev() {
        if why(i) {
            return true;
        }
        let code = file.code[i].trim();
        let attribute = code.starts_with("#[") || code.ends_with(")]");
        let blank = code.is_empty() && comment(i).is_empty();
        if blank || (!attribute && code.ends_with([';', '{', '}', ','])) {
            return false;
        }
    }
    false
}

/// True if it is a method of an unsafe trait's impl: the impl says why.
fn within_unsafe_impl(file: &File, line: usize) -> bool {
    let item = file.code[..line - 1].iter().rev().find(|code| code.starts_with(char::is_alphabetic));
    item.is_some_and(|code| code.starts_with("unsafe impl"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn lines(text: &str) -> Vec<usize> {
        check(&[File::new("a/b.rs", text)]).into_iter().map(|f| f.line).collect()
    }

    #[test]
    fn silence_is_found() {
        assert_eq!(lines("fn f() {\n    unsafe { g() }\n}"), [2]);
        assert_eq!(lines("unsafe impl Send for A {}"), [1]);
        assert_eq!(lines("/// Does it.\nunsafe fn f() {}"), [2]);
        assert_eq!(lines("/// Does it.\nunsafe extern \"C\" fn f() {}\nunsafe extern \"C\" {}"), [2, 3]);
        assert_eq!(lines("// SAFETY: once.\nlet a = unsafe { g() };\nlet b = unsafe { g() };"), [3]);
        assert_eq!(lines("// SAFETY: far.\n\nlet a = unsafe { g() };"), [3]);
    }

    #[test]
    fn words_are_enough() {
        assert_eq!(lines("// SAFETY: one thread.\nunsafe impl Send for A {}"), NONE);
        assert_eq!(lines("// SAFETY: it\n// is so.\nlet a =\n    b(unsafe { g() });"), NONE);
        assert_eq!(lines("let a = unsafe { g() }; // SAFETY: so"), NONE);
        assert_eq!(lines("/// # Safety\n///\n/// No.\n#[inline]\npub unsafe fn f() {}"), NONE);
        assert_eq!(lines("//! # Safety\n//!\n//! Do.\nunsafe extern \"C\" fn f() {}"), NONE);
        assert_eq!(lines("// SAFETY: ours.\nunsafe impl A for B {\n    unsafe fn f() {}\n}"), NONE);
    }

    #[test]
    fn a_folder_may_have_one_contract() {
        let parent = File::new("a/mod.rs", "//! All.\n//! # Safety\n//! Do.\nunsafe fn f() {}\n");
        let child = File::new("a/b.rs", "unsafe fn f() {}\nfn g() { unsafe { f() } }");
        let other = File::new("b/b.rs", "unsafe fn f() {}");
        let found = check(&[parent, child, other]);
        let places: Vec<_> = found.iter().map(|f| (f.path.as_str(), f.line)).collect();
        assert_eq!(places, [("a/b.rs", 2), ("b/b.rs", 1)]);
    }

    #[test]
    fn what_is_not_unsafe_is_left_alone() {
        assert_eq!(
            lines("let a = \"unsafe {\"; // unsafe {\ntype F = unsafe fn(u8);\nlet not_unsafe = 1;"),
            NONE
        );
    }
}
