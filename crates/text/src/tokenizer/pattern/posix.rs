//! POSIX classes, such as `[[:space:]]`, as Oniguruma interprets them: by Unicode properties. Other engines restrict
//! them to ASCII.

use std::borrow::Cow;

/// The classes and their definitions in Oniguruma.
const CLASSES: [(&str, &str); 14] = [
    ("alnum", r"\p{Alphabetic}\p{Nd}"),
    ("alpha", r"\p{Alphabetic}"),
    ("ascii", r"\x00-\x7F"),
    ("blank", r"\p{Zs}\t"),
    ("cntrl", r"\p{Cc}"),
    ("digit", r"\p{Nd}"),
    ("graph", r"[^\p{White_Space}\p{Cc}\p{Cn}]"),
    ("lower", r"\p{Lowercase}"),
    ("print", r"[^\p{White_Space}\p{Cc}\p{Cn}]\p{Zs}"),
    ("punct", r"\p{P}\p{S}"),
    ("space", r"\p{White_Space}"),
    ("upper", r"\p{Uppercase}"),
    ("word", r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}"),
    ("xdigit", "0-9A-Fa-f"),
];

/// The pattern with its POSIX classes expanded.
pub(super) fn spelled_out(source: &str) -> Cow<'_, str> {
    if !source.contains("[:") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut classes = 0usize;
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        if let Some((class, negated, after)) = class(rest).filter(|_| classes > 0) {
            out.extend([if negated { "[^" } else { "[" }, class, "]"]);
            rest = after;
            continue;
        }
        let mut width = c.len_utf8();
        match c {
            // Escapes are copied.
            '\\' => width += rest[1..].chars().next().map_or(0, char::len_utf8),
            '[' => classes += 1,
            ']' => classes = classes.saturating_sub(1),
            _ => {}
        }
        out.push_str(&rest[..width]);
        rest = &rest[width..];
    }
    Cow::Owned(out)
}

/// The class at the start of a text, whether it is negated, and the text after it.
fn class(text: &str) -> Option<(&'static str, bool, &str)> {
    let inside = text.strip_prefix("[:")?;
    let name = inside.strip_prefix('^').unwrap_or(inside);
    let (class, after) = CLASSES
        .iter()
        .find_map(|(known, class)| Some((*class, name.strip_prefix(known)?.strip_prefix(":]")?)))?;
    Some((class, name.len() < inside.len(), after))
}

#[cfg(test)]
mod tests {
    use super::super::Pattern;
    use super::*;

    #[test]
    fn classes_are_written_out_where_they_are_such() {
        for (source, want) in [
            (r"[[:digit:]]+", r"[[\p{Nd}]]+"),
            (r"[^[:^space:]a]", r"[^[^\p{White_Space}]a]"),
            (r"\[[:alpha:]", r"\[[:alpha:]"),
            (r"[[:unheard:]]", r"[[:unheard:]]"),
            (r"a[b]", r"a[b]"),
        ] {
            assert_eq!(spelled_out(source), want);
        }
    }

    /// The definitions were compared with Oniguruma's classes on all characters; these are samples outside ASCII.
    #[test]
    fn classes_have_the_characters_that_oniguruma_gives_them() {
        for (class, text) in [
            ("space", "\u{85}\u{a0}\u{1680}\u{2003}\u{2028}\u{3000}"),
            ("punct", "!$+<=>^`|~¢£«…。€"),
            ("alpha", "aéßжא你ⅷⓐ"),
            ("digit", "1٣१๑"),
            ("word", "aé_१\u{301}‿"),
            ("upper", "AÉЖⅧ"),
            ("lower", "aéªжⅷ"),
            ("xdigit", "0f"),
            ("cntrl", "\u{1}\u{85}"),
            ("graph", "aé…\u{ad}\u{e000}"),
            ("print", "a \u{3000}"),
            ("blank", " \t\u{3000}"),
            ("alnum", "a1१"),
            ("ascii", "a\u{7f}"),
        ] {
            // With look-around, the backtracking engine is used.
            for source in
                [format!("[[:{class}:]]"), format!("[[:{class}:]](?!Q)"), format!("[^[:^{class}:]]")]
            {
                let pattern = Pattern::new(&source).unwrap();
                let mut found = Vec::new();
                pattern.find(text, |a, b| found.push(&text[a..b])).unwrap();
                let want: Vec<&str> = text.split("").filter(|c| !c.is_empty()).collect();
                assert_eq!(found, want, "{source}");
            }
        }
        for (class, text) in [
            ("space", "a\u{200b}"),
            ("digit", "²½a"),
            ("xdigit", "gｆ"),
            ("upper", "aǅ"),
            ("alpha", "1\u{301}_"),
        ] {
            let mut found = 0;
            Pattern::new(&format!("[[:{class}:]]")).unwrap().find(text, |_, _| found += 1).unwrap();
            assert_eq!(found, 0, "{class}");
        }
    }
}
