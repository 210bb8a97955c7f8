//! [`Form`]: a body of several parts, as browsers and clients send files (RFC 7578).

use crate::errors::{ApiError, quoted};

/// Parts of a body at most.
const MOST_PARTS: usize = 64;
/// Bytes of a part's headers at most.
const MOST_HEADERS: usize = 4096;

/// One part of a form. The bytes are the body's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    /// Its field's name.
    pub name: String,
    /// What it holds.
    pub bytes: &'a [u8],
}

/// The parts that have not been taken yet.
#[derive(Debug)]
pub(crate) struct Form<'a>(Vec<Part<'a>>);

/// The boundary between parts, from a content type.
pub(crate) fn boundary(kind: &str) -> Option<String> {
    let (kind, parameters) = kind.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let value = parameters.split(';').find_map(|p| {
        let (name, value) = p.split_once('=')?;
        name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"').to_owned())
    })?;
    (1..=70).contains(&value.len()).then_some(value)
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

impl<'a> Form<'a> {
    /// Takes a body apart.
    pub(crate) fn read(body: &'a [u8], boundary: &str) -> Result<Form<'a>, ApiError> {
        let broken = |why: &str| ApiError::bad(format!("the form is broken: {why}"));
        let first = format!("--{boundary}");
        let next = format!("\r\n--{boundary}");
        let begin = find(body, first.as_bytes()).ok_or_else(|| broken("its boundary is not there"))?;
        let mut left = &body[begin + first.len()..];
        let mut parts = Vec::new();
        while let Some(rest) = left.strip_prefix(b"\r\n") {
            if parts.len() == MOST_PARTS {
                return Err(broken(&format!("it has more than {MOST_PARTS} parts")));
            }
            let head = find(&rest[..rest.len().min(MOST_HEADERS)], b"\r\n\r\n");
            let head = head.ok_or_else(|| broken("a part's headers do not end"))?;
            let name = name(&rest[..head]).ok_or_else(|| broken("a part has no name"))?;
            let rest = &rest[head + 4..];
            // A part of nothing may have its end where its headers end.
            let end = find(rest, next.as_bytes()).ok_or_else(|| broken("a part does not end"))?;
            parts.push(Part { name, bytes: &rest[..end] });
            left = &rest[end + next.len()..];
        }
        match left.starts_with(b"--") {
            true => Ok(Form(parts)),
            false => Err(broken("it does not end")),
        }
    }

    /// A part's bytes.
    pub(crate) fn bytes(&mut self, name: &str) -> Option<&'a [u8]> {
        let at = self.0.iter().position(|part| part.name == name)?;
        Some(self.0.remove(at).bytes)
    }

    /// A part's text.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        let Some(bytes) = self.bytes(name) else { return Ok(None) };
        let text = String::from_utf8(bytes.to_vec());
        text.map(Some).map_err(|_| ApiError::field(name, format!("{name} is no text in UTF-8")))
    }

    /// All texts of that name.
    pub(crate) fn texts(&mut self, name: &str) -> Result<Vec<String>, ApiError> {
        let mut all = Vec::new();
        while let Some(text) = self.text(name)? {
            all.push(text);
        }
        Ok(all)
    }

    /// Refuses what nobody has taken.
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

/// The name in a part's headers.
fn name(headers: &[u8]) -> Option<String> {
    let headers = String::from_utf8_lossy(headers).into_owned();
    let line = headers.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then(|| value.to_owned())
    })?;
    line.split(';').find_map(|p| {
        let (name, value) = p.split_once('=')?;
        name.trim().eq_ignore_ascii_case("name").then(|| value.trim().trim_matches('"').to_owned())
    })
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
        let mut form = Form::read(BODY, &kind).unwrap();
        assert_eq!(form.bytes("file").unwrap(), b"RIFF\r\n--x\r\n");
        assert_eq!(form.text("model").unwrap().unwrap(), "tiny");
        assert!(form.text("model").unwrap().is_none());
        form.finish().unwrap();
        assert!(Form::read(BODY, "xy").unwrap().finish().is_err());
        assert_eq!(boundary("application/json"), None);
        assert_eq!(boundary(&format!("multipart/form-data; boundary={}", "x".repeat(71))), None);
    }

    #[test]
    fn what_is_cut_anywhere_is_refused_and_nothing_panics() {
        for end in 0..BODY.len() - 4 {
            assert!(Form::read(&BODY[..end], "xy").is_err(), "{end}");
        }
        for broken in ["", "--xy", "--xy\r\n\r\n\r\n--xy--", "--xy\r\na: b\r\n\r\nx\r\n--xy--"] {
            assert!(Form::read(broken.as_bytes(), "xy").is_err(), "{broken:?}");
        }
        let many = "--xy\r\ncontent-disposition: form-data; name=a\r\n\r\n\r\n".repeat(65) + "--xy--";
        assert!(Form::read(many.as_bytes(), "xy").is_err());
    }
}
