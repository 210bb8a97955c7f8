//! [`Transfer`]: progress of a page or a state on its way between device and host, some parts at a time.

use std::ops::Range;

/// Progress of a copy of a page or a state.
#[derive(Debug)]
pub(super) struct Transfer {
    /// Bytes of all of it.
    whole: usize,
    /// Parts and bytes that have been copied.
    parts: usize,
    bytes: usize,
}

impl Transfer {
    pub(super) fn new(whole: usize) -> Transfer {
        Transfer { whole, parts: 0, bytes: 0 }
    }

    /// The parts that are copied next, and their bytes: as many as the budget allows, but at least one. `sizes`: bytes of each
    /// part.
    pub(super) fn next(&mut self, sizes: &[usize], budget: &mut usize) -> (Range<usize>, Range<usize>) {
        let (first, start) = (self.parts, self.bytes);
        while let Some(size) = sizes.get(self.parts)
            && (self.parts == first || *size <= *budget)
        {
            *budget = budget.saturating_sub(*size);
            (self.parts, self.bytes) = (self.parts + 1, self.bytes + size);
        }
        (first..self.parts, start..self.bytes)
    }

    /// True if all has been copied.
    pub(super) fn is_done(&self) -> bool {
        self.bytes >= self.whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_copied_once() {
        let sizes = [3, 3, 10, 1, 1];
        // Parts that have been copied after each step.
        for (most, want) in [(1, vec![1, 2, 3, 4, 5]), (6, vec![2, 3, 5]), (7, vec![2, 3, 5]), (100, vec![5])]
        {
            let mut transfer = Transfer::new(18);
            let (mut steps, mut end) = (Vec::new(), 0);
            while !transfer.is_done() {
                let mut budget = most;
                let (parts, bytes) = transfer.next(&sizes, &mut budget);
                assert_eq!(parts.start, steps.last().copied().unwrap_or(0));
                assert_eq!((bytes.start, bytes.len()), (end, sizes[parts.clone()].iter().sum()));
                assert_eq!(budget, most.saturating_sub(bytes.len()));
                end = bytes.end;
                steps.push(parts.end);
            }
            assert_eq!((steps, end), (want, 18), "at most {most}");
        }
    }
}
