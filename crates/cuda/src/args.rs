//! [`Args`]: the arguments of a launch.

use std::cell::Cell;

/// A kernel's parameters as C lays them out, each aligned to its size, in words of 32 bits. They come in the order in which the
/// kernel declares them.
///
/// A step makes hundreds of these, so that its methods are inlined, and the last one's room is used again.
#[derive(Clone, Debug)]
pub(crate) struct Args(Vec<u32>);

/// Words that hold the arguments of any kernel of ours: growing would take longer than all else.
const ROOM: usize = 128;

thread_local! {
    static SPARE: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
}

impl Drop for Args {
    fn drop(&mut self) {
        // At the end of a thread there is none.
        let _ = SPARE.try_with(|spare| spare.set(std::mem::take(&mut self.0)));
    }
}

/// The words of a number of 64 bits.
#[inline(always)]
pub(crate) fn words(n: u64) -> [u32; 2] {
    [n as u32, (n >> 32) as u32]
}

impl Args {
    pub(crate) fn new() -> Args {
        let mut words = SPARE.try_with(Cell::take).unwrap_or_default();
        words.clear();
        words.reserve(ROOM);
        Args(words)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }

    /// A number of 32 bits. Those that describe tensors have no more: see `alloc`.
    #[inline(always)]
    pub(crate) fn word(mut self, n: usize) -> Args {
        debug_assert!(u32::try_from(n).is_ok(), "{n} is no number of 32 bits");
        self.0.push(n as u32);
        self
    }

    /// A boolean, as a number of 32 bits.
    #[inline(always)]
    pub(crate) fn flag(self, is: bool) -> Args {
        self.word(usize::from(is))
    }

    #[inline(always)]
    pub(crate) fn float(mut self, x: f32) -> Args {
        self.0.push(x.to_bits());
        self
    }

    /// A number of 64 bits.
    #[inline(always)]
    pub(crate) fn wide(self, n: u64) -> Args {
        self.wide_and(n, [])
    }

    /// A number of 64 bits, and words behind it.
    #[inline(always)]
    pub(crate) fn wide_and<const N: usize>(mut self, n: u64, then: [u32; N]) -> Args {
        if !self.0.len().is_multiple_of(2) {
            self.0.push(0);
        }
        self.0.extend_from_slice(&words(n));
        self.0.extend_from_slice(&then);
        self
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
