//! [`in_tiles`]: any number of rows, as many at a time as fit into registers.

/// A kernel whose code is for a fixed number of rows of a task, `T`.
///
/// # Safety
///
/// Callers of [`tile`](RowKernel::tile) see to it that the task has `T` rows from `row` on, and that the CPU has the
/// kernel's instruction set.
pub(super) trait RowKernel<Task> {
    /// Most rows whose sums fit into registers.
    const MAX_ROWS: usize;

    /// Multiplies `T` rows, from `row` on.
    unsafe fn tile<const T: usize>(task: &mut Task, row: usize);
}

/// Runs a kernel for all `rows` of a task, and avoids remainders of one or two rows where possible.
///
/// # Safety
///
/// The task has these rows, and the CPU the instruction set.
#[inline(always)]
pub(super) unsafe fn in_tiles<K: RowKernel<Task>, Task>(task: &mut Task, rows: usize) {
    let mut row = 0;
    while row < rows {
        // SAFETY: at least `T` rows are left, as `match` says; the caller upholds the rest of the contract.
        row += unsafe {
            match (rows - row).min(K::MAX_ROWS) {
                // Two tiles of about the same size.
                12 if matches!(rows - row, 14 | 16) => tile::<K, Task, 8>(task, row),
                1 => tile::<K, Task, 1>(task, row),
                2 => tile::<K, Task, 2>(task, row),
                3 => tile::<K, Task, 3>(task, row),
                4 | 5 => tile::<K, Task, 4>(task, row),
                6 | 7 => tile::<K, Task, 6>(task, row),
                8..=11 => tile::<K, Task, 8>(task, row),
                _ => tile::<K, Task, 12>(task, row),
            }
        };
    }
}

/// Runs the kernel for `T` rows, which is not compiled if that is more than it takes. Returns `T`.
#[inline(always)]
unsafe fn tile<K: RowKernel<Task>, Task, const T: usize>(task: &mut Task, row: usize) -> usize {
    if const { T <= K::MAX_ROWS } {
        // SAFETY: the caller upholds the same contract.
        unsafe { K::tile::<T>(task, row) };
    }
    T
}
