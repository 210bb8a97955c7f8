//! [`Fields`]: an iterator over the fields of a Protocol Buffers message.

/// A message that is read field by field. Nothing is copied, and nothing outside the bytes is read.
pub(super) struct Fields<'a>(&'a [u8]);

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A 32-bit field; the messages read here only use it for floats.
    Float(f32),
    /// A 64-bit field; none of these messages needs its value.
    Long,
}

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'a [u8]) -> Fields<'a> {
        Fields(message)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(|| {
            format!("ends within a field: {count} bytes should follow, and {} do", self.0.len())
        })?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, String> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("has a number of more than ten bytes".into())
    }

    fn field(&mut self) -> Result<(u64, Value<'a>), String> {
        let key = self.number()?;
        let value = match key & 7 {
            0 => Value::Number(self.number()?),
            1 => self.take(8).map(|_| Value::Long)?,
            2 => {
                let len = self.number()?;
                let len = usize::try_from(len).map_err(|_| format!("has a field of {len} bytes"))?;
                Value::Bytes(self.take(len)?)
            }
            5 => {
                let bytes = self.take(4)?;
                Value::Float(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            }
            kind => return Err(format!("has a field of kind {kind}, which is none")),
        };
        Ok((key >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), String>;

    /// The next field's number and value. After an error the iterator ends.
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_or_refused() {
        let all = |bytes: &'static [u8]| Fields::new(bytes).collect::<Result<Vec<_>, _>>();
        let message = b"\x0a\x02hi\x15\0\0\x80\x3f\x18\xac\x02\x21\0\0\0\0\0\0\0\0";
        let want =
            vec![(1, Value::Bytes(b"hi")), (2, Value::Float(1.0)), (3, Value::Number(300)), (4, Value::Long)];
        assert_eq!(all(message).unwrap(), want);
        for (bytes, why) in [
            (&b"\x0a\x05hi"[..], "5 bytes should follow, and 2 do"),
            (b"\x0b", "kind 3"),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "more than ten bytes"),
            (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "should follow"),
            (b"\x80", "ends within a field"),
        ] {
            let said = all(bytes).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }
}
