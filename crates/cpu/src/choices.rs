//! What each thread tries while it multiplies, since it depends on the machine ([`Trial`]): whether weights are prefetched
//! ([`PrefetchChoices`]), and whether GEMV or GEMM multiplies them with more rows than one tile ([`KernelChoices`]).

use crate::pack::PackedKind;
use crate::trial::{LEAST, Trial, Way};

/// Whether a kernel prefetches the weights that it will read next.
///
/// Some processors read weights half as fast again with [`prefetch_strided`](crate::gemm::prefetch_strided). On others the
/// hardware prefetches as well by itself, and a prefetch of what is in the L2 cache already costs as much as a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Prefetch {
    /// In the order of [`prefetch_strided`](crate::gemm::prefetch_strided), and the next lines into the nearest cache.
    #[default]
    Strided,
    /// The hardware alone.
    None,
}

impl Way for Prefetch {
    const WAYS: [Prefetch; 2] = [Prefetch::Strided, Prefetch::None];
}

/// A thread's choices of [`Prefetch`].
#[derive(Default)]
pub(crate) struct PrefetchChoices {
    /// By kind of weights, and rows.
    trials: Vec<[Option<Box<Trial<Prefetch>>>; PrefetchChoices::ROWS]>,
}

impl PrefetchChoices {
    /// Most rows of input for which it is tried. With more, multiplying takes longer than reading; with three and four, too, where there
    /// are few registers, and there both ways are the same.
    pub(crate) const ROWS: usize = 4;

    /// Runs a product of `bytes` bytes of weights with so many rows, and tells it whether to prefetch.
    #[inline]
    pub(crate) fn run(
        &mut self,
        kind: PackedKind,
        rows: usize,
        bytes: usize,
        product: impl FnOnce(Prefetch),
    ) {
        if rows > PrefetchChoices::ROWS || bytes < LEAST {
            return product(Prefetch::Strided);
        }
        let trial = &mut of_kind(&mut self.trials, kind)[rows.max(1) - 1];
        trial.get_or_insert_with(|| Box::new(Trial::new(Prefetch::Strided))).run(bytes, product);
    }
}

/// What multiplies weights with more rows than one tile. Both give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Tile by tile, each of which unpacks weights in registers.
    Gemv,
    /// A chunk is unpacked to memory, and multiplied with all rows: with more rows that takes less, on some processors from few on.
    Gemm,
}

impl Way for Kernel {
    const WAYS: [Kernel; 2] = [Kernel::Gemv, Kernel::Gemm];
}

/// A thread's choices of [`Kernel`].
#[derive(Default)]
pub(crate) struct KernelChoices {
    /// By kind of weights, and the power of two that rows do not exceed.
    trials: Vec<[Option<Box<Trial<Kernel>>>; KernelChoices::SIZES]>,
}

impl KernelChoices {
    /// Up to 512 rows.
    const SIZES: usize = 10;

    /// Runs a product of `bytes` bytes of weights with so many rows, and tells it the kernel. `first` is that until it was tried.
    #[inline]
    pub(crate) fn run(
        &mut self,
        kind: PackedKind,
        (rows, bytes): (usize, usize),
        first: Kernel,
        product: impl FnOnce(Kernel),
    ) {
        let size = rows.next_power_of_two().ilog2() as usize;
        if size >= KernelChoices::SIZES || bytes < LEAST {
            return product(first);
        }
        let trial = &mut of_kind(&mut self.trials, kind)[size];
        trial.get_or_insert_with(|| Box::new(Trial::new(first))).run(bytes, product);
    }
}

/// The trials for a kind of weights.
#[inline]
fn of_kind<T: Default>(trials: &mut Vec<T>, kind: PackedKind) -> &mut T {
    let kind = kind as usize;
    if kind >= trials.len() {
        trials.resize_with(kind + 1, T::default);
    }
    &mut trials[kind]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ways that products of 64 MB in all are computed in.
    fn ways<W: Way>(mut run: impl FnMut(&mut dyn FnMut(W))) -> [usize; 2] {
        let mut ways = [0; 2];
        for _ in 0..(64 << 20) / LEAST {
            run(&mut |way| ways[usize::from(way == W::WAYS[1])] += 1);
        }
        ways
    }

    #[test]
    fn few_rows_of_large_weights_are_tried() {
        let mut choices = PrefetchChoices::default();
        let of = |choices: &mut PrefetchChoices, rows, bytes| {
            ways(|product| choices.run(PackedKind::EightF16, rows, bytes, product))
        };
        assert!(of(&mut choices, 1, LEAST).iter().all(|n| *n > 0));
        assert_eq!(of(&mut choices, 1, LEAST - 1)[1], 0);
        assert_eq!(of(&mut choices, PrefetchChoices::ROWS + 1, LEAST)[1], 0);
    }

    #[test]
    fn kernels_are_tried_by_the_size_of_the_input() {
        let mut choices = KernelChoices::default();
        let mut of = |rows, first, bytes| {
            ways(|product| choices.run(PackedKind::FourMin, (rows, bytes), first, product))
        };
        assert!(of(17, Kernel::Gemv, LEAST).iter().all(|n| *n > 0));
        // Of the same size: it was tried.
        assert!(of(32, Kernel::Gemv, LEAST).contains(&0));
        assert!(of(33, Kernel::Gemm, LEAST).iter().all(|n| *n > 0));
        assert!(of(512, Kernel::Gemm, LEAST).iter().all(|n| *n > 0));
        // Too many rows, or too small.
        assert_eq!(of(513, Kernel::Gemm, LEAST)[0], 0);
        assert_eq!(of(64, Kernel::Gemm, LEAST - 1)[0], 0);
    }
}
