//! Bytes as text, six bits in a character: RFC 4648.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text of bytes.
pub(crate) fn write(bytes: impl Iterator<Item = u8>) -> String {
    let bytes: Vec<u8> = bytes.collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, i| bits << 8 | u32::from(three.get(i).copied().unwrap_or(0)));
        for i in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= three.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// The bytes of a text, which may be without what fills up its end.
pub(crate) fn read(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for four in text.chunks(4) {
        let mut bits = 0u32;
        for letter in four {
            bits = bits << 6 | value(*letter)?;
        }
        match four.len() {
            4 => bytes.extend(&bits.to_be_bytes()[1..]),
            3 => bytes.extend(&(bits >> 2).to_be_bytes()[2..]),
            2 => bytes.push((bits >> 4) as u8),
            // Six bits are no byte.
            _ => return None,
        }
    }
    Some(bytes)
}

/// The six bits of a letter.
fn value(letter: u8) -> Option<u32> {
    let value = match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
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
                (write(plain.bytes()), read(coded)),
                (coded.to_owned(), Some(plain.as_bytes().to_vec()))
            );
        }
        assert_eq!(write([0xfb, 0xff, 0xbf].into_iter()), "+/+/");
        assert_eq!(read("+/+/"), Some(vec![0xfb, 0xff, 0xbf]));
        assert_eq!(
            [read("Zg"), read("Z"), read("Zm9v!A=="), read("Zm 9v")],
            [Some(b"f".to_vec()), None, None, None]
        );
    }
}
