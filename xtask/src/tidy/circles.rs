//! Circles of imports: within a folder, no modules import each other in a circle.
//!
//! A module is a file, or a folder with all that is in it. A folder's own `mod.rs` is not one of its modules: what it
//! holds belongs to all of them, and it may use each. So every folder can be read from the bottom up, and so can the
//! crate. Tests may import what they like.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::imports::{Import, Module, imports, place};
use super::source::File;

/// Imports between the modules of one folder, each with one place that has it.
type Graph<'a> = BTreeMap<&'a str, BTreeMap<&'a str, &'a Import>>;

/// The graph of each folder.
fn graphs(all: &[Import]) -> BTreeMap<Module, Graph<'_>> {
    let mut graphs: BTreeMap<Module, Graph<'_>> = BTreeMap::new();
    for import in all {
        let common = import.from.iter().zip(&import.to).take_while(|(a, b)| a == b).count();
        if let (Some(from), Some(to)) = (import.from.get(common), import.to.get(common)) {
            let graph = graphs.entry(import.from[..common].to_vec()).or_default();
            graph.entry(from).or_default().entry(to).or_insert(import);
        }
    }
    graphs
}

/// Modules that `from` imports, directly or through others.
fn reached<'a>(graph: &Graph<'a>, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = vec![from];
    while let Some(module) = open.pop() {
        for to in graph.get(module).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(*to) {
                open.push(to);
            }
        }
    }
    found
}

/// Sets of modules that import each other.
fn circles<'a>(graph: &Graph<'a>) -> BTreeSet<Vec<&'a str>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = graph.keys().map(|m| (*m, reached(graph, m))).collect();
    let both = |a: &str, b: &str| reach[a].contains(b) && reach.get(b).is_some_and(|of| of.contains(a));
    let of = |m: &&'a str| reach[*m].iter().copied().filter(|other| both(m, other)).collect();
    graph.keys().filter(|m| both(m, m)).map(of).collect()
}

/// A shortest way round from a module to itself.
fn way_round<'a>(graph: &Graph<'a>, start: &'a str) -> Vec<&'a Import> {
    let mut ways: Vec<(&str, Vec<&Import>)> = vec![(start, Vec::new())];
    let mut seen = BTreeSet::new();
    let mut next = 0;
    while next < ways.len() {
        let (at, way) = ways[next].clone();
        next += 1;
        for (to, import) in graph.get(at).into_iter().flatten() {
            let way = [way.as_slice(), &[*import]].concat();
            if *to == start {
                return way;
            }
            if seen.insert(*to) {
                ways.push((to, way));
            }
        }
    }
    Vec::new()
}

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<(usize, Module)>> = BTreeMap::new();
    for (i, file) in files.iter().enumerate().filter(|(_, file)| file.is_rust()) {
        if let Some((root, module)) = place(&file.path) {
            crates.entry(root).or_default().push((i, module));
        }
    }
    let mut found = Vec::new();
    for of in crates.values() {
        let all = imports(files, of);
        for graph in graphs(&all).values() {
            found.extend(circles(graph).iter().map(|circle| finding(files, graph, circle)));
        }
    }
    found
}

fn finding(files: &[File], graph: &Graph<'_>, circle: &[&str]) -> Finding {
    let way = way_round(graph, circle[0]);
    let step = |import: &&Import| {
        let name = |module: &Module| module.join("::");
        let path = &files[import.file].path;
        format!("{} names {} ({path}:{})", name(&import.from), name(&import.to), import.line)
    };
    let steps: Vec<String> = way.iter().map(step).collect();
    let what = format!(
        "the modules {} import each other in a circle: {}; move what both need into a module below them",
        circle.join(", "),
        steps.join(", ")
    );
    let (file, line) = way.first().map_or((0, 1), |import| (import.file, import.line));
    Finding::new(&files[file], line, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The modules of the circles that are found.
    fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
        let between = |text: &String| {
            text.split_once("the modules ")?.1.split_once(" import each").map(|(names, _)| names.to_owned())
        };
        let files: Vec<File> =
            files.iter().map(|(path, text)| File::new(&format!("crates/x/src/{path}"), text)).collect();
        check(&files).iter().map(Finding::to_string).filter_map(|found| between(&found)).collect()
    }

    #[test]
    fn a_circle_is_found_however_it_is_written() {
        let b = ("b.rs", "use crate::a::A;");
        for a in [
            "use crate::b;",
            "use crate::{c, b::{B, C}};",
            "use super::b::B;",
            "fn f() -> crate::b::B { todo() }",
            "macro_rules! m { () => { $crate::b::B } }",
            "mod inner { use super::super::b::B; }",
            "use crate::B;",
            "use crate::Again;",
            "use crate::c::B as Other;",
        ] {
            let lib = ("lib.rs", "mod a;\nmod b;\nmod c;\npub use b::B;\npub use c::B as Again;");
            assert_eq!(circles_of(&[lib, ("a.rs", a), b, ("c.rs", "pub use crate::b::B;")]).len(), 1, "{a}");
        }
    }

    #[test]
    fn what_leads_one_way_is_none() {
        let one_way = [
            ("lib.rs", "mod a;\nmod b;\nuse a::A;"),
            ("a.rs", "use crate::b::B; use std::fmt; // crate::c::C\nconst T: &str = \"crate::a\";"),
            ("b.rs", "use crate::Shared;\n#[cfg(test)]\nmod tests { use super::*; use crate::a::A; }"),
        ];
        assert_eq!(circles_of(&one_way), Vec::<String>::new());
        let tests_only = [
            ("lib.rs", "mod a;\n#[cfg(all(test, unix))]\nmod b;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::a::A;"),
        ];
        assert_eq!(circles_of(&tests_only), Vec::<String>::new());
    }

    #[test]
    fn a_folder_is_one_module_and_its_own_file_belongs_to_all_of_it() {
        let inside = [
            ("a/mod.rs", "mod one;\nmod two;\nuse one::One;\npub struct Shared;"),
            ("a/one.rs", "use super::Shared;\nuse super::two::Two;"),
            ("a/two.rs", "use super::Shared;"),
        ];
        assert_eq!(circles_of(&inside), Vec::<String>::new());
        let between = [("b.rs", "use crate::a::two::Two;"), ("a/one.rs", "use crate::b::B;")];
        assert_eq!(circles_of(&[&inside[..1], &inside[2..], &between[..]].concat()), ["a, b"]);
        let back = [("a/two.rs", "use super::one::One;")];
        assert_eq!(circles_of(&[&inside[..2], &back[..]].concat()), ["one, two"]);
    }
}
