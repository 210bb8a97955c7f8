//! [`resolve`]: references between schemas (RFC 3986), and the tokens of JSON pointers (RFC 6901).

/// A URI without its scheme.
struct Parts<'a> {
    scheme: &'a str,
    authority: Option<&'a str>,
    path: &'a str,
    /// Query and fragment.
    rest: &'a str,
}

fn parts(uri: &str) -> Parts<'_> {
    let is_scheme = |s: &str| {
        s.starts_with(|c: char| c.is_ascii_alphabetic())
            && s.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    let (scheme, after) = uri.split_once(':').filter(|(s, _)| is_scheme(s)).unwrap_or(("", uri));
    let end = after.find(['?', '#']).unwrap_or(after.len());
    let (hierarchy, rest) = after.split_at(end);
    match hierarchy.strip_prefix("//") {
        Some(hierarchy) => {
            let (authority, path) = hierarchy.split_at(hierarchy.find('/').unwrap_or(hierarchy.len()));
            Parts { scheme, authority: Some(authority), path, rest }
        }
        None => Parts { scheme, authority: None, path: hierarchy, rest },
    }
}

/// The URI that a reference means in a document with this base.
pub(super) fn resolve(base: &str, reference: &str) -> String {
    let (base, to) = (parts(base), parts(reference));
    if !to.scheme.is_empty() {
        return reference.into();
    }
    let authority = to.authority.or(base.authority).map_or(String::new(), |a| format!("//{a}"));
    let base_rest = base.rest.split('#').next().unwrap_or_default();
    let (path, rest) = match (to.authority, to.path) {
        (Some(_), path) => (path.to_owned(), to.rest.to_owned()),
        (None, "") if to.rest.starts_with('?') => (base.path.into(), to.rest.into()),
        (None, "") => (base.path.into(), format!("{base_rest}{}", to.rest)),
        (None, path) if path.starts_with('/') => (without_dots(path), to.rest.into()),
        (None, path) => {
            let folder = base.path.rfind('/').map_or("", |at| &base.path[..=at]);
            let folder = if folder.is_empty() && base.authority.is_some() { "/" } else { folder };
            (without_dots(&format!("{folder}{path}")), to.rest.into())
        }
    };
    format!("{}:{authority}{path}{rest}", base.scheme)
}

fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = path.split('/').collect();
    for (i, segment) in segments.iter().enumerate() {
        let last = i + 1 == segments.len();
        match *segment {
            "." | ".." => {
                if *segment == ".." && kept.len() > 1 {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            segment => kept.push(segment),
        }
    }
    kept.join("/")
}

/// The text of a fragment, whose characters may be written as `%` and two digits.
pub(super) fn decode(fragment: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = fragment.as_bytes().iter();
    while let Some(byte) = bytes.next().copied() {
        let digits = bytes.as_slice().get(..2).and_then(|d| std::str::from_utf8(d).ok());
        match digits.and_then(|d| u8::from_str_radix(d, 16).ok()).filter(|_| byte == b'%') {
            Some(decoded) => {
                out.push(decoded);
                bytes.nth(1);
            }
            None => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// A token of a JSON pointer.
pub(super) fn escape(token: &str) -> String {
    token.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_resolved() {
        for (base, reference, expected) in [
            ("http://a/b/c", "d", "http://a/b/d"),
            ("http://a/b/c", "/d", "http://a/d"),
            ("http://a/b/c", "../d", "http://a/d"),
            ("http://a/b/c", "#x", "http://a/b/c#x"),
            ("http://a/b/c", "//e/f", "http://e/f"),
            ("http://a", "d", "http://a/d"),
            ("urn:uuid:1", "#x", "urn:uuid:1#x"),
            ("http://a/b/", "urn:x", "urn:x"),
            ("tallow:schema", "d", "tallow:d"),
            ("tallow:schema", "", "tallow:schema"),
        ] {
            assert_eq!(resolve(base, reference), expected, "{base} {reference}");
        }
    }

    #[test]
    fn fragments_are_decoded() {
        assert_eq!(decode("/a%25b/c%22%"), "/a%b/c\"%");
    }
}
