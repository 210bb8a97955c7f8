//! [`Args`]: the arguments of a launch.

/// A kernel's parameters as bytes, laid out as C does: each aligned to its size. They come in the order in which the kernel
/// declares them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Args(Vec<u8>);

impl Args {
    pub(crate) fn new() -> Args {
        Args::default()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn aligned<const N: usize>(mut self, bytes: [u8; N]) -> Args {
        self.0.resize(self.0.len().next_multiple_of(N), 0);
        self.0.extend(bytes);
        self
    }

    /// A number of 32 bits. Those that describe tensors have no more: see `alloc`.
    pub(crate) fn word(self, n: usize) -> Args {
        debug_assert!(u32::try_from(n).is_ok(), "{n} is no number of 32 bits");
        self.aligned((n as u32).to_le_bytes())
    }

    /// A boolean, as a number of 32 bits.
    pub(crate) fn flag(self, is: bool) -> Args {
        self.word(usize::from(is))
    }

    pub(crate) fn float(self, x: f32) -> Args {
        self.aligned(x.to_le_bytes())
    }

    /// A number of 64 bits.
    pub(crate) fn wide(self, n: u64) -> Args {
        self.aligned(n.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lies_as_in_c() {
        let args = Args::new().flag(true).wide(2).float(1.0).optional(None).word(7);
        // A flag and a gap, a number of 64 bits, a number and a gap, a matrix, a word.
        assert_eq!(args.bytes().len(), 8 + 8 + 8 + 24 + 4);
        assert_eq!(args.bytes()[8..16], 2u64.to_le_bytes());
        assert_eq!(args.bytes()[16..20], 1f32.to_le_bytes());
        assert_eq!(args.bytes()[24..48], [0; 24]);
        assert_eq!(args.bytes()[48..], 7u32.to_le_bytes());
    }
}
