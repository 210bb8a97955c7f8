//! [`Form`]: `multipart/form-data` bodies (RFC 7578).

use crate::errors::{ApiError, quoted};

/// Most parts of a body.
const MAX_PARTS: usize = 64;
/// Longest headers of a part in bytes.
const MAX_HEADERS: usize = 4096;

/// One part of a form. Borrows from the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    /// Field name.
    pub name: String,
    /// Content.
    pub bytes: &'a [u8],
}

/// Parts that have not been taken yet.
#[derive(Debug)]
pub(crate) struct MultipartForm<'a>(Vec<Part<'a>>);

/// The boundary of a `multipart/form-data` content type.
pub(crate) fn boundary(kind: &str) -> Option<String> {
    let (kind, parameters) = kind.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let value = parameter(parameters, "boundary")?;
    (1..=70).contains(&value.len()).then_some(value)
}

/// Value of one of several parameters separated by semicolons. Within quotes a semicolon is literal, and a backslash
/// escapes a quote (RFC 9110).
fn parameter(parameters: &str, wanted: &str) -> Option<String> {
    let mut rest = parameters;
    loop {
        let (name, after) = rest.split_once('=')?;
        // Parameters without a value are skipped.
        let name = name.rsplit(';').next().unwrap_or(name).trim();
        let (value, left) = value(after.trim_start());
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = left;
    }
}

/// Splits off the value at the start of a text, quoted or not.
fn value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let (value, rest) = text.split_once(';').unwrap_or((text, ""));
        return (value.trim_end().to_owned(), rest);
    };
    let (mut value, mut escaped) = (String::new(), false);
    for (at, c) in quoted.char_indices() {
        match c {
            '"' if !escaped => {
                let rest = &quoted[at + 1..];
                return (value, rest.split_once(';').map_or("", |(_, rest)| rest));
            }
            '\\' if !escaped => escaped = true,
            _ => {
                // Browsers write paths with unescaped backslashes.
                if escaped && !matches!(c, '"' | '\\') {
                    value.push('\\');
                }
                value.push(c);
                escaped = false;
            }
        }
    }
    (value, "")
}

/// Next boundary line at or after `from`: its start, the start of what follows, and whether it is the last. Only white
/// space may follow the boundary on its line; with anything else the line is part of a file.
fn delimiter(body: &[u8], mark: &[u8], from: usize) -> Option<(usize, usize, bool)> {
    let mut at = from;
    loop {
        let start = at + find(body.get(at..)?, mark)?;
        let after = start + mark.len();
        let is_last = body[after..].starts_with(b"--");
        let blank = &body[if is_last { after + 2 } else { after }..];
        let spaces = blank.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
        let end = body.len() - blank.len() + spaces;
        if body[end..].starts_with(b"\r\n") {
            return Some((start, end + 2, is_last));
        }
        if is_last && end == body.len() {
            return Some((start, end, true));
        }
        at = start + 1;
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let first = *what.first()?;
    let mut from = 0;
    while let Some(at) = bytes.get(from..)?.iter().position(|b| *b == first) {
        if bytes[from + at..].starts_with(what) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

impl<'a> MultipartForm<'a> {
    /// Parses a body.
    pub(crate) fn read(body: &'a [u8], boundary: &str) -> Result<MultipartForm<'a>, ApiError> {
        let broken = |why: &str| ApiError::bad(format!("the form is broken: {why}"));
        // The first boundary has no preceding line break.
        let mark = format!("--{boundary}");
        let (start, mut at, mut is_last) =
            delimiter(body, mark.as_bytes(), 0).ok_or_else(|| broken("its boundary is not there"))?;
        if start > 0 && !body[..start].ends_with(b"\r\n") {
            return Err(broken("its boundary is not at the start of a line"));
        }
        let mark = format!("\r\n--{boundary}");
        let mut parts = Vec::new();
        while !is_last {
            if parts.len() == MAX_PARTS {
                return Err(broken(&format!("it has more than {MAX_PARTS} parts")));
            }
            let rest = &body[at..];
            let head = find(&rest[..rest.len().min(MAX_HEADERS)], b"\r\n\r\n");
            let head = head.ok_or_else(|| broken("a part's headers do not end"))?;
            let name = name(&rest[..head]).ok_or_else(|| broken("a part has no name"))?;
            // The boundary of an empty part may use the line break that ends its headers.
            let content = at + head + 4;
            let (end, next, last) = delimiter(body, mark.as_bytes(), content - 2)
                .ok_or_else(|| broken("a part does not end, or there is no boundary after the last"))?;
            parts.push(Part { name, bytes: body.get(content..end).unwrap_or_default() });
            (at, is_last) = (next, last);
        }
        Ok(MultipartForm(parts))
    }

    /// Takes a part's bytes.
    pub(crate) fn bytes(&mut self, name: &str) -> Option<&'a [u8]> {
        let at = self.0.iter().position(|part| part.name == name)?;
        Some(self.0.remove(at).bytes)
    }

    /// Takes a part's text.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        let Some(bytes) = self.bytes(name) else { return Ok(None) };
        let text = String::from_utf8(bytes.to_vec());
        text.map(Some).map_err(|_| ApiError::field(name, format!("{name} is not valid UTF-8")))
    }

    /// Takes all texts of that name.
    pub(crate) fn texts(&mut self, name: &str) -> Result<Vec<String>, ApiError> {
        let mut all = Vec::new();
        while let Some(text) = self.text(name)? {
            all.push(text);
        }
        Ok(all)
    }

    /// Refuses parts that were not taken.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        match self.0.first() {
            None => Ok(()),
            Some(part) => {
                let why = format!("the field {} is not known, or is there twice", quoted(&part.name));
                let name: String = part.name.chars().take(128).collect();
                Err(ApiError::field(name, why).code("unknown_field"))
            }
        }
    }
}

/// The field name in a part's headers.
fn name(headers: &[u8]) -> Option<String> {
    let headers = String::from_utf8_lossy(headers).into_owned();
    let line = headers.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then(|| value.to_owned())
    })?;
    // The disposition type stands before the first semicolon.
    parameter(line.split_once(';')?.1, "name")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"--xy\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--xy\r\n\
        content-disposition: form-data; name=\"file\"; filename=\"a; name=b.wav\"\r\nContent-Type: audio/wav\r\n\r\n\
        RIFF\r\n--x\r\n\r\n--xy--\r\n";

    #[test]
    fn parts_are_told_apart() {
        let kind = boundary("Multipart/Form-Data; charset=utf-8; boundary=\"xy\"").unwrap();
        let mut form = MultipartForm::read(BODY, &kind).unwrap();
        assert_eq!(form.bytes("file").unwrap(), b"RIFF\r\n--x\r\n");
        assert_eq!(form.text("model").unwrap().unwrap(), "tiny");
        assert!(form.text("model").unwrap().is_none());
        form.finish().unwrap();
        assert!(MultipartForm::read(BODY, "xy").unwrap().finish().is_err());
        assert_eq!(boundary("application/json"), None);
        assert_eq!(boundary(&format!("multipart/form-data; boundary={}", "x".repeat(71))), None);
    }

    /// A form of one part with this header line and content.
    fn one(boundary: &str, headers: &str, text: &str) -> Vec<u8> {
        format!("--{boundary}\r\n{headers}\r\n\r\n{text}\r\n--{boundary}--\r\n").into_bytes()
    }

    #[test]
    fn names_are_what_is_in_quotes() {
        for (disposition, expected) in [
            (r#"form-data; filename="a; name=evil.wav"; name="file""#, "file"),
            (r#"form-data; name="a;b""#, "a;b"),
            (r#"form-data; name="a\"; name=evil"; filename=x"#, r#"a"; name=evil"#),
            (r#"form-data; filename="C:\sound\a.wav"; name="file""#, "file"),
            ("form-data;name = file ; filename=x", "file"),
            ("form-data; flag; name=file", "file"),
            ("form-data; NAME=file", "file"),
        ] {
            let body = one("xy", &format!("Content-Disposition: {disposition}"), "x");
            let form = MultipartForm::read(&body, "xy").unwrap();
            assert_eq!(form.0[0].name, expected, "{disposition}");
        }
        assert!(
            MultipartForm::read(&one("xy", "Content-Disposition: form-data; filename=x", "x"), "xy").is_err()
        );
        assert!(MultipartForm::read(&one("xy", "Content-Disposition: name=x", "x"), "xy").is_err());
    }

    #[test]
    fn boundaries_may_have_semicolons_and_blanks_behind_them() {
        assert_eq!(boundary(r#"multipart/form-data; boundary="x;y""#).as_deref(), Some("x;y"));
        assert_eq!(
            boundary(r#"multipart/form-data; a="boundary=z"; boundary=xy ; b=c"#).as_deref(),
            Some("xy")
        );
        assert_eq!(boundary("multipart/form-data; charset=x"), None);
        let body = b"preamble\r\n--xy \t\r\ncontent-disposition: form-data; name=a\r\n\r\n1\r\n--xy  \r\n\
            content-disposition: form-data; name=b\r\n\r\n\r\n--xy-- \r\nepilogue";
        let mut form = MultipartForm::read(body, "xy").unwrap();
        assert_eq!((form.bytes("a").unwrap(), form.bytes("b").unwrap()), (&b"1"[..], &b""[..]));
        form.finish().unwrap();
    }

    #[test]
    fn a_line_that_only_begins_like_a_boundary_is_part_of_a_file() {
        let headers = "content-disposition: form-data; name=file";
        for text in ["1\r\n--xyz\r\n2", "--xyz", "\r\n--xy-\r\n", "\r\n--xy.--\r\n", "1\r\n--xy--z"] {
            let body = one("xy", headers, text);
            let mut form = MultipartForm::read(&body, "xy").unwrap();
            assert_eq!(form.bytes("file").unwrap(), text.as_bytes());
            form.finish().unwrap();
        }
        let near = "\r\n--x".repeat(1 << 18);
        assert_eq!(
            MultipartForm::read(&one("xy", headers, &near), "xy").unwrap().bytes("file").unwrap(),
            near.as_bytes()
        );
    }

    #[test]
    fn what_is_cut_anywhere_is_refused_and_nothing_panics() {
        for end in 0..BODY.len() - 2 {
            assert!(MultipartForm::read(&BODY[..end], "xy").is_err(), "{end}");
        }
        for broken in [
            "",
            "x--xy\r\ncontent-disposition: form-data; name=a\r\n\r\nx\r\n--xy--",
            "--xy",
            "--xy\r\n\r\n\r\n--xy--",
            "--xy\r\na: b\r\n\r\nx\r\n--xy--",
        ] {
            assert!(MultipartForm::read(broken.as_bytes(), "xy").is_err(), "{broken:?}");
        }
        let many = "--xy\r\ncontent-disposition: form-data; name=a\r\n\r\n\r\n".repeat(65) + "--xy--";
        assert!(MultipartForm::read(many.as_bytes(), "xy").is_err());
    }
}
