//! Base64 (RFC 4648).

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

/// Encodes bytes, with padding.
pub(crate) fn write(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Decodes text, with or without padding.
pub(crate) fn read(text: &str) -> Option<Vec<u8>> {
    STANDARD_NO_PAD.decode(text.trim_end_matches('=')).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_are_those_of_rfc_4648() {
        let pairs = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, coded) in pairs {
            assert_eq!(
                (write(plain.as_bytes()), read(coded)),
                (coded.to_owned(), Some(plain.as_bytes().to_vec()))
            );
        }
        assert_eq!(write(&[0xfb, 0xff, 0xbf]), "+/+/");
        assert_eq!(read("+/+/"), Some(vec![0xfb, 0xff, 0xbf]));
        assert_eq!(
            [read("Zg"), read("Z"), read("Zm9v!A=="), read("Zm 9v")],
            [Some(b"f".to_vec()), None, None, None]
        );
    }
}
