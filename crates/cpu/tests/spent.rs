//! Preparing a weight releases its source rows as it goes, so that the memory held besides the packed form is bounded.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::Range;
use std::sync::Mutex;

use tallow_core::{Backend, Format, HostWeight};
use tallow_cpu::{Cpu, Isa};

/// Row ranges that were released while a weight was prepared, sorted.
fn said(threads: usize, format: Format, rows: usize, cols: usize) -> Vec<Range<usize>> {
    let b = Cpu::new(Isa::Scalar, threads).unwrap();
    let bytes = vec![0; rows * format.row_bytes(cols).unwrap()];
    let said = Mutex::new(Vec::new());
    let spent = |rows| said.lock().unwrap().push(rows);
    b.prepare(HostWeight { release: &spent, ..HostWeight::new(format, rows, cols, &bytes) }).unwrap();
    let mut said = said.into_inner().unwrap();
    said.sort_by_key(|rows| rows.start);
    said
}

#[test]
fn every_row_is_spent_once_and_few_at_a_time() {
    for (format, cols) in [(Format::Q8_0, 1024), (Format::Q4K, 512), (Format::BF16, 1000), (Format::F32, 40)]
    {
        for (threads, rows) in [(1, 1), (1, 4000), (3, 33), (3, 5001), (64, 5001)] {
            let said = said(threads, format, rows, cols);
            let case = format!("{format}[{rows}, {cols}] on {threads} threads: {said:?}");
            let ends = said.windows(2).all(|two| two[0].end == two[1].start);
            assert!(ends && said[0].start == 0 && said.last().unwrap().end == rows, "{case}");
            let most = said.iter().map(|rows| rows.len()).max().unwrap();
            let bytes = most * format.row_bytes(cols).unwrap();
            assert!(bytes <= 1 << 20 || most <= 32, "{bytes} bytes are held, {case}");
            // Every thread has something to do.
            assert!(said.len() >= threads.min(rows.div_ceil(32)), "{case}");
        }
    }
}
