//! A token's journey: eight stops in the source, each where `ARCHITECTURE.md` says.

use super::Finding;
use super::source::{File, backends};

/// The crate that contains each stop, from the first; `None`: any backend.
const STOPS: [Option<&str>; 8] = [
    Some("cli"),
    Some("server"),
    Some("engine"),
    Some("engine"),
    Some("models"),
    Some("models"),
    None,
    Some("engine"),
];
const MARK: &str = "// Journey, stop ";

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let (mut found, backends) = (Vec::new(), backends(files));
    let stops = STOPS.map(|stop| stop.map_or_else(|| backends.clone(), |member| vec![member]));
    let mut seen = [0; STOPS.len()];
    for file in files.iter().filter(|f| f.is_program()) {
        for (i, comment) in file.comments.iter().enumerate() {
            let Some(rest) = comment.trim_start().strip_prefix(MARK) else { continue };
            let number = rest.split(':').next().and_then(|n| n.parse::<usize>().ok()).unwrap_or(0);
            let Some(members) = number.checked_sub(1).and_then(|n| stops.get(n)) else {
                let what = format!("the journey has stops 1 to {}, written \"{MARK}1: …\"", STOPS.len());
                found.push(Finding::new(file, i + 1, what));
                continue;
            };
            seen[number - 1] += 1;
            if !members.contains(&file.member().unwrap_or_default()) {
                let what =
                    format!("stop {number} of the journey is in crates/{}", members.join(" or crates/"));
                found.push(Finding::new(file, i + 1, what));
            } else if seen[number - 1] > 1 {
                found.push(Finding::new(
                    file,
                    i + 1,
                    format!("stop {number} of the journey is marked twice"),
                ));
            }
        }
    }
    for (i, members) in stops.iter().enumerate().filter(|(i, _)| seen[*i] == 0) {
        let what = format!("no \"{MARK}{}: …\" is in crates/{}", i + 1, members.join(" or crates/"));
        found.push(Finding { path: "ARCHITECTURE.md".into(), line: 1, what });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journey(change: impl Fn(usize, &str) -> (String, String)) -> Vec<String> {
        let stops = STOPS.iter().enumerate().map(|(i, member)| {
            let (path, text) = change(i + 1, member.unwrap_or("cpu"));
            File::new(&path, &text)
        });
        let backend =
            ["crates/cli/src/devices/cpu.rs", "crates/cpu/Cargo.toml"].map(|path| File::new(path, ""));
        let files = stops.chain(backend);
        check(&files.collect::<Vec<_>>()).into_iter().map(|f| f.what).collect()
    }

    fn whole(i: usize, member: &str) -> (String, String) {
        (
            format!("crates/{member}/src/stop{i}.rs"),
            format!("fn f() {{\n    // Journey, stop {i}: here.\n}}\n"),
        )
    }

    #[test]
    fn a_whole_journey_is_fine() {
        assert_eq!(journey(whole), Vec::<String>::new());
    }

    #[test]
    fn missing_double_and_misplaced_stops_are_found() {
        let missing = journey(|i, m| if i == 4 { ("a.rs".into(), String::new()) } else { whole(i, m) });
        assert_eq!(missing, ["no \"// Journey, stop 4: …\" is in crates/engine"]);
        let double = journey(|i, m| if i == 4 { (whole(i, m).0, whole(3, m).1) } else { whole(i, m) });
        assert!(double.contains(&"stop 3 of the journey is marked twice".into()), "{double:?}");
        let elsewhere = journey(|i, m| whole(i, if i == 7 { "engine" } else { m }));
        assert_eq!(elsewhere, ["stop 7 of the journey is in crates/cpu"]);
        let ninth = journey(|i, m| if i == 8 { (whole(i, m).0, whole(9, m).1) } else { whole(i, m) });
        assert_eq!(ninth.len(), 2, "{ninth:?}");
    }
}
