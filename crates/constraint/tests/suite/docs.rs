//! The table of refused keywords in the documentation is the one of the code.

#[test]
fn the_table_of_keywords_is_up_to_date() {
    let path = tallow_support::root().join("docs/structured-output.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- keywords: written by the tests -->\n", "<!-- end of keywords -->");
    let start = text.find(begin).unwrap() + begin.len();
    let stop = text.find(end).unwrap();
    let table = tallow_constraint::refused_keywords();
    if text[start..stop] != table {
        let new = format!("{}{table}{}", &text[..start], &text[stop..]);
        let updates = std::env::var_os("INSTA_UPDATE").is_some_and(|how| how == "always");
        assert!(updates, "{} is stale: run the test with INSTA_UPDATE=always", path.display());
        std::fs::write(path, new).unwrap();
    }
}
